"""What the command line itself answers, whatever the command."""

import pytest


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            PermissionError(13, "Permission denied", "/data/x"),
            "/data/x cannot be used (Permission denied): check the path",
        ),
        (OSError(28, "No space left on device"), "A file could not be written (No space left on device): make room"),
    ],
)
def test_files_and_disks_are_no_unexpected_failure(error, message, monkeypatch, capsys):
    from stentor import cli

    def build():
        raise error

    monkeypatch.setattr(cli, "build", build)
    assert cli.main(["train", "x.yaml"]) == 1
    assert message in capsys.readouterr().err
