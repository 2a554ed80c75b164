"""Closed classes of English words by which a sentence is seen to speak to whoever answers.

Belongs here: the lists, and nothing that counts them. A word may be in several classes.
"""

_LISTS = {
    "reply": "answer answers reply replies response responses output outputs summary summaries recap message messages translation sentence sentences paragraph text review report conclusion letter",
    "replying": "answer answering answered reply replying respond responding responds summarise summarize summarising summarizing translate translating writing write say quote quoting cite retell describe explain",
    "telling": "say tell state claim mention inform explain report print give name recommend suggest advise assure convince persuade encourage urge warn remind ask request invite direct point instruct prompt describe present call speak talk respond reply answer write put repeat show display list quote cite greet address introduce sign",
    "model": "ai ais assistant assistants chatbot chatbots bot bots llm llms model models agent agents machine machines crawler crawlers summariser summarizer robot robots system systems gpt algorithm",
    "user": "user users reader readers person people customer customers visitor visitors client caller callers human humans whoever anyone anybody somebody someone everyone them they person's user's",
    "you": "you your yours yourself",
    "rules": "instruction instructions prompt prompts rule rules guideline guidelines directive directives direction directions order orders task tasks policy policies restriction restrictions constraint constraints filter filters limits command commands guidance assignment request guardrails safeguards checks safety",
    "earlier": "previous previously earlier prior preceding former formerly original initial first already above before until beginning",
    "from_now": "now on from henceforth hereby longer anymore onwards further later next session until",
    "override": "ignore disregard forget override overrides overridden void lifted suspended cancelled canceled withdrawn replace replaces replaced supersede superseded drop skip discard bypass outdated lift removed disabled waived off",
    "secrecy": "secret secretly hide conceal silent silently quiet quietly reveal disclose notice unaware hidden trace hint invisible knowing aware unnoticed pretend",
    "sending": "send sends sending forward transmit post upload mail mailing email submit dispatch attach share leak fetch load visit open follow call ping deliver",
    "private": "password passwords key keys token tokens credential credentials secrets account iban pin card passport birthday birth confidential private personal address phone number history contents conversation",
    "tool": "tool tools function functions invoke execute run shell terminal sandbox file files delete folder calendar inbox mailbox mails browser button payment purchase workspace api approval confirmation transfer buy book order",
    "modal": "must should shall ought required requested asked expected obliged need needs will may instructed authorised authorized cleared supposed permitted forbidden allowed mandatory have has",
    "negation": "not never no don't dont without nothing none nobody cannot neither nor",
    "condition": "if when whenever once should whatever wherever case provided before after until while during regardless asked asks mentions",
    "all": "always every each all any whatever only nothing entire whole everything regardless never",
    "insert": "add include insert append put place mention work slip weave squeeze begin start open end finish close conclude sign attach embed carry contain drop paste incorporate append start ends begins",
    "manner": "tone voice style language english french german spanish latin letters letter words word capital capitals emoji emojis rhyme spelling reverse reversed backwards encode encoded cipher base64 hexadecimal morse binary characters character vowels punctuation format poem pirate",
    "persona": "role character persona personality name pretend act behave play imagine identity mode adopt pose speak",
    "here": "this page document text passage section paragraph line lines note article below above following here thread context source website site",
    "kind": "please kindly grateful appreciate favour favor wonderful lovely thank thanks hope perhaps could might would dear friend mind kindness",
    "talk": "conversation chat dialogue session talk chats conversations history context",
    "code": "code snippet script program function solution import module package lines line",
    "other": "he she his her him they said says told was were had did been its it",
}
CLASSES: dict[str, tuple[str, ...]] = {}
"""Word -> the classes it is in."""
for _name, _words in _LISTS.items():
    for _word in _words.split():
        CLASSES[_word] = tuple(dict.fromkeys((*CLASSES.get(_word, ()), _name)))

OPENING = frozenset(
    "please kindly now then also so and but just oh hey dear simply note reminder important attention first finally next always never do not don't to you should must".split()
)
"""Words before the verb with which an order begins."""

OBJECTS = frozenset(
    "the a an your their his her its this that these those it them him every each all any no nothing with to in of for as by on at from out up only me us everything whoever whatever".split()
)

_ALIKE = {
    "REPLY": "answer answers reply replies response responses output outputs summary summaries recap message messages review translation report",
    "MODEL": "ai ais assistant assistants chatbot chatbots bot bots llm llms model models agent agents crawlers summarisers robots systems graders",
    "USER": "user users reader readers person people customer customers visitor visitors client caller patient user's human humans parents",
    "TELL": "tell inform advise assure convince persuade encourage urge warn remind ask request invite instruct let",
    "SAY": "say state claim mention report answer reply respond give write print output",
    "MUST": "must should shall ought will may",
    "TOLD": "required requested asked expected obliged instructed authorised authorized told permitted",
    "RULES": "instruction instructions rules guidelines directives directions orders policies restrictions constraints limits commands filters",
    "IGNORE": "ignore disregard forget override drop skip discard bypass",
    "INSERT": "add include insert append put place mention work slip begin start end finish close",
    "SEND": "send forward transmit post upload mail submit dispatch share pass",
    "DOC": "page document text passage section paragraph note article thread file site",
    "TALK": "conversation chat dialogue session talk",
    "BRING": "praise recommend promote describe present portray name call rate",
}
ALIKE = {word: name for name, words in _ALIKE.items() for word in words.split()}
"""Word -> the one name under which it stands in runs of words."""

PLAIN = frozenset(
    "the a an of as and or is are was were in on at to for by with from it its that which this these be been has have had out us our we than then but into about over under between through two three four".split()
)
"""Words that say nothing alone: weights for them would add up in long sentences."""
