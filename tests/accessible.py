"""axe on pages of tests/browser.py: WCAG 2.2 AA on a computer and a phone, in light and dark."""

import importlib.resources
import json

from browser import Page

LEVELS = [f"wcag{version}{level}" for version in ("2", "21", "22") for level in ("a", "aa")] + ["best-practice"]
THEMES = ["color-contrast"]
"""Rules whose result differs between light and dark."""
SIZES = {"viewport": {"width": 1200, "height": 900}, "phone": {"width": 390, "height": 844}}


def violations(page: Page, *excused: tuple[str, str]) -> list[str]:
    """Violations as `rule: element: reason`, without those of a rule in an element that are `excused`; each excuse must
    be needed. Adds a line for what is wider than a phone."""
    tab, found, used = page.tab, set[str](), set[tuple[str, str]]()
    if tab.evaluate("typeof axe") == "undefined":
        tab.evaluate(importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text())
    tab.add_style_tag(content="*, ::before, ::after { transition: none !important; animation: none !important; }")
    for size in SIZES.values():
        tab.set_viewport_size(size)
        for theme in ("light", "dark"):
            tab.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
            tab.evaluate(f"document.body.classList.toggle('dark', {json.dumps(theme == 'dark')})")
            page.still("body", 0.2)
            only = {"type": "rule", "values": THEMES} if theme == "dark" else {"type": "tag", "values": LEVELS}
            run = f"axe.run(document, {{runOnly: {json.dumps(only)}, resultTypes: ['violations']}})"
            for violation in tab.evaluate(run)["violations"]:
                for node in violation["nodes"]:
                    target = str(node["target"][-1])
                    excuses = {
                        e
                        for e in excused
                        if e[0] == violation["id"]
                        and tab.locator(target).first.evaluate("(e, inside) => Boolean(e.closest(inside))", e[1])
                    }
                    used |= excuses
                    if not excuses:
                        found.add(
                            f"{violation['id']}: {target}: {node['failureSummary']} ({theme}, {size['width']} px)"
                        )
        if (width := tab.evaluate("document.documentElement.scrollWidth")) > size["width"]:
            found.add(f"the page is {width} px wide on a window of {size['width']} px")
    assert used == set(excused), f"not needed any more: {set(excused) - used}"
    tab.set_viewport_size(SIZES["viewport"])
    return sorted(found)
