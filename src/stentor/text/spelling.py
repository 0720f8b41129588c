"""Spelling table: British to American, for scoring only: a word list grown from stems by regular inflection.

Written for this package. Whisper's own table is not shipped; where figures must match it word for word, name its
`normalizer.json` in the task's `spelling`.
"""

from functools import lru_cache

# colour -> color, with no ending or one of OUR_ENDINGS on both sides.
OUR = """
arbour ardour armour behaviour candour clamour colour demeanour dishonour disfavour discolour enamour endeavour favour
fervour flavour glamour harbour honour humour labour misbehaviour neighbour odour parlour rancour rigour rumour
saviour savour splendour succour tumour unfavour valour vapour vigour watercolour multicolour
"""
OUR_ENDINGS = """
s ed ing er ers ful fully less able ably ite ites ist ists al ally ism hood hoods ly ize y ies ings
some blind ation
"""

# organise -> organize.
ISE = """
agonise americanise amortise anaesthetise analogise anonymise antagonise apologise apostrophise atomise authorise
baptise bastardise brutalise bureaucratise cannibalise canonise capitalise caramelise carbonise categorise catheterise
centralise characterise christianise civilise collectivise colonise commercialise compartmentalise computerise
conceptualise criminalise criticise crystallise customise decentralise decimalise decolonise decriminalise dehumanise
demilitarise demobilise democratise demonise demoralise denationalise deputise destabilise digitise disorganise
dramatise economise emphasise energise epitomise equalise eulogise evangelise extemporise externalise familiarise
fantasise feminise fertilise finalise formalise fossilise fraternise galvanise generalise glamorise globalise
harmonise hospitalise humanise hypnotise hypothesise idealise idolise immobilise immortalise immunise industrialise
initialise institutionalise internalise internationalise ionise italicise itemise jeopardise legalise legitimise
liberalise lionise localise magnetise marginalise materialise maximise mechanise memorialise memorise mesmerise
metabolise militarise minimise mobilise modernise monetise monopolise moralise motorise nationalise naturalise
neutralise normalise notarise optimise organise ostracise oxidise pasteurise patronise penalise personalise
philosophise plagiarise pluralise polarise politicise popularise pressurise prioritise privatise proselytise publicise
pulverise radicalise randomise rationalise realise recognise regularise reorganise revitalise revolutionise
romanticise sanitise satirise scandalise scrutinise secularise sensationalise sensitise serialise sermonise socialise
solemnise specialise stabilise standardise sterilise stigmatise subsidise summarise symbolise sympathise synchronise
synthesise systematise tantalise temporise terrorise theorise traumatise tranquillise trivialise tyrannise unionise
urbanise utilise vandalise vaporise verbalise victimise visualise vocalise vulgarise westernise womanise
"""
YSE = "analyse breathalyse catalyse dialyse electrolyse paralyse psychoanalyse overanalyse"

# Stems whose final consonant British writing doubles: travelled -> traveled.
DOUBLED = """
apparel barrel bedevil bevel cancel carol cavil channel chisel counsel cudgel dial dishevel drivel duel enamel equal
fuel funnel grovel impanel initial jewel kennel label level libel marshal marvel medal metal model panel parcel pedal
pencil peril petal pistol pummel quarrel ravel refuel remodel rival shovel shrivel signal snivel spiral squirrel
stencil swivel tassel tinsel total towel trammel travel tunnel unravel victual weasel worship
"""

# centre -> center, with regular endings.
RE = """
calibre centre fibre goitre litre lustre meagre metre millimetre centimetre kilometre ochre reconnoitre sabre
saltpetre sceptre sepulchre sombre spectre theatre amphitheatre epicentre millilitre
"""

# defence -> defense and other whole words; plurals are written out where they differ.
WORDS = """
acknowledgement acknowledgment|acknowledgements acknowledgments|aeon eon|aeons eons|aeroplane airplane
aeroplanes airplanes|aesthete esthete|aesthetic esthetic|aesthetics esthetics|aesthetically esthetically|ageing aging
aluminium aluminum|anaemia anemia|anaemic anemic|anaesthesia anesthesia|anaesthetic anesthetic
anaesthetics anesthetics|anaesthetist anesthetist|analogue analog|analogues analogs|annexe annex
archaeological archeological|archaeologist archeologist|archaeologists archeologists|archaeology archeology
artefact artifact|artefacts artifacts|behove behoove|behoves behooves|biassed biased|calliper caliper
callipers calipers|catalogue catalog|catalogued cataloged|catalogues catalogs|cataloguing cataloging
chequered checkered|chilli chili|chillies chilies|cosy cozy|cosier cozier|cosily cozily
cosiness coziness|councillor councilor|councillors councilors|counsellor counselor|counsellors counselors
defence defense|defences defenses|defenceless defenseless|dialogue dialog|dialogues dialogs|diarrhoea diarrhea
draught draft|draughts drafts|draughtsman draftsman|draughtsmen draftsmen|draughty drafty
encyclopaedia encyclopedia|encyclopaedias encyclopedias|enrol enroll|enrols enrolls|enrolment enrollment
enrolments enrollments|enthral enthrall|enthrals enthralls|faecal fecal|faeces feces|foetal fetal|foetus fetus
foetuses fetuses|fulfil fulfill|fulfils fulfills|fulfilment fulfillment|furore furor|gaol jail|gaoler jailer
gaolers jailers|gaols jails|gonorrhoea gonorrhea|grey gray|greyed grayed|greyer grayer|greyest grayest
greying graying|greyish grayish|greyness grayness|greys grays|gynaecological gynecological
gynaecologist gynecologist|gynaecologists gynecologists|gynaecology gynecology|haemoglobin hemoglobin
haemophilia hemophilia|haemophiliac hemophiliac|haemorrhage hemorrhage|haemorrhages hemorrhages
haemorrhoids hemorrhoids|homoeopathic homeopathic|homoeopathy homeopathy|instalment installment
instalments installments|instil instill|instils instills|jewellery jewelry|judgement judgment|judgements judgments
kerb curb|kerbs curbs|kilogramme kilogram|kilogrammes kilograms|leukaemia leukemia|licence license|licences licenses
liquorice licorice|manoeuvrable maneuverable|manoeuvre maneuver|manoeuvred maneuvered|manoeuvres maneuvers
manoeuvring maneuvering|marvellous marvelous|marvellously marvelously|mediaeval medieval|monologue monolog
monologues monologs|mould mold|moulded molded|moulder molder|mouldering moldering|moulding molding|mouldings moldings
moulds molds|mouldy moldy|moult molt|moulted molted|moulting molting|moults molts|moustache mustache
moustached mustached|moustaches mustaches|oesophagus esophagus|oestrogen estrogen|offence offense|offences offenses
omelette omelet|omelettes omelets|orthopaedic orthopedic|orthopaedics orthopedics|paediatric pediatric
paediatrician pediatrician|paediatricians pediatricians|paediatrics pediatrics|paedophile pedophile
paedophiles pedophiles|palaeolithic paleolithic|palaeontologist paleontologist|palaeontology paleontology
phoney phony|plough plow|ploughed plowed|ploughing plowing|ploughman plowman|ploughmen plowmen|ploughs plows
practise practice|practised practiced|practises practices|practising practicing|pretence pretense|pretences pretenses
programme program|programmes programs|prologue prolog|prologues prologs|pyjamas pajamas|sceptic skeptic
sceptical skeptical|sceptically skeptically|scepticism skepticism|sceptics skeptics|skilful skillful
skilfully skillfully|smoulder smolder|smouldered smoldered|smouldering smoldering|smoulders smolders|snowplough snowplow
sulphate sulfate|sulphates sulfates|sulphide sulfide|sulphur sulfur|sulphurous sulfurous
syphon siphon|tyre tire|tyres tires|unskilful unskillful|waggon wagon|waggons wagons|wilful willful
wilfully willfully|woollen woolen|woollens woolens|woolly wooly|travelogue travelog|travelogues travelogs
yoghurt yogurt|yoghurts yogurts|speciality specialty|specialities specialties
"""


@lru_cache(maxsize=1)
def american() -> dict[str, str]:
    """British spelling -> American spelling, lower case, inflected forms included."""
    table: dict[str, str] = {}
    for stem in OUR.split():
        at = stem.rindex("our")
        table |= {stem + e: stem[:at] + "or" + stem[at + 3 :] + e for e in ("", *OUR_ENDINGS.split())}
    for word in (ISE + YSE).split():
        british, us = word[:-1], word[:-2] + "z"
        for e in ("e", "ed", "es", "er", "ers", "ing", "ation", "ations", "ational", "able"):
            table[british + e] = us + e
    for stem in DOUBLED.split():
        double = stem + stem[-1]
        for e in ("ed", "ing", "er", "ers", "ings", "ist", "ists"):
            table[double + e] = stem + e
    for word in RE.split():
        us = word[:-2] + "er"
        table |= {word: us, word + "s": us + "s", word + "d": us + "ed", word[:-1] + "ing": us + "ing"}
    for pair in WORDS.replace("\n", "|").split("|"):
        if pair.strip():
            british, us = pair.split()
            table[british] = us
    return table
