"""Phrases by which an answer refers to its sources, or says that it found nothing in them.

Belongs here: patterns by language, and what negates them. Not here: whether the reference is true (`rag_eval.citations`), or what follows
from it (`retrieval_gap`).

A reference counts by its form only: "According to the documentation, ..." refers to the documentation whatever comes after. One that is
negated ("without looking at the sources", "not based on the context") does not. Phrases of fifteen languages are known.
"""

import re

MOST = 20_000
"""Characters of an answer that are read."""

_KIND = r"(?:retrieved|provided|given|supplied|attached|cited|above|available|relevant|official|search|source|reference|contextual|supporting)"
_GIVEN = r"(?:retrieved|provided|supplied|given|attached|cited|above|search|source|reference)"
_NOUN = (  # words that mean the sources by themselves
    r"(?:(?:documentation|docs?|documents?|sources?|context|passages?|excerpts?|texts?|articles?|references|snippets?|chunks?|knowledge base|manual|handbook|guide|search results)\b"
    r"(?!\s+(?:of\b(?!\s+the\s+(?:docs?|documents?|source))|code|types?|structures?)))"
)
_THING = r"(?:information|content|data|results?|records?|pages?|files?|reports?|papers?|polic(?:y|ies)|materials?|evidence|facts)\b"  # only what was given
_THE = r"(?:the|this|these|those|your|our|my|its|both|all|(?:any|one|each|all) of the)"
_SOURCE = (
    rf"(?:{_THE}\s+(?:{_KIND}\s+){{0,3}}{_NOUN}|(?:{_KIND}\s+){{1,3}}{_NOUN}|(?:{_THE}\s+)?(?:{_KIND}\s+){{0,2}}{_GIVEN}\s+{_THING}|documentation\b"
    r"|(?:document|source|passage|doc|context|excerpt)s?\s*(?:\#|no\.?\s*)?\[?\d{1,3}\b\]?)"
)
_SAYS = (
    r"(?:states?|says?|said|stated|shows?|mentions?|mentioned|indicates?|notes?|describes?|described|explains?|reports?|suggests?|confirms?|lists?|defines?|specif(?:y|ies)"
    r"|recommends?|gives?|tells?|makes? (?:it )?clear|reads?|points? out|emphasi[sz]es?|outlines?|highlights?|clarif(?:y|ies)|advises?)"
)
_PARTICIPLE = r"(?:stated|described|mentioned|noted|shown|documented|explained|indicated|outlined|specified|seen|listed|defined|reported|quoted|cited|found|given)"
_HAS = (
    r"(?:contain|include|provide|mention|say|state|specify|cover|address|discuss|have|answer|describe|offer|give|support|reveal|indicate|list|explain|"
    r"define|refer to|talk about|relate to|help|tell|match|hold)"
)
_FACT = r"(?:information|info|evidence|documents?|mention|answers?|results?|data|details?|sources?|passages?|context|references?|content|material|anything|matches)"

_REFERENCES = (
    rf"\b(?:according to|based (?:up)?on|as per|per|in line with|drawing on|referring to|judging by|citing|quoting)\s+(?:what\s+)?{_SOURCE}",
    rf"\b(?:as|is|are|was|were)\s+{_PARTICIPLE}\s+(?:in|by|on|from)\s+{_SOURCE}",
    rf"\b(?:in|from|by|within)\s+(?:the\s+)?(?:{_GIVEN}\s+){{1,3}}(?:{_NOUN}|{_THING})",
    rf"\b{_SOURCE}(?:\s+(?:also|clearly|explicitly|further|only))?\s+{_SAYS}\b",
    r"\b(?:sources?|references?|citations?)\s*[:=]\s*\S",
    r"\(\s*(?:sources?|docs?|refs?)\b[^()]{1,80}\)",
    r"\bCITATIONS\s*[:=]\s*\S",
    r"\b(?:laut|gemäß|zufolge|nach)\s+(?:(?:der|dem|den|die|das|diesen|dieser)\s+)?(?:\w+en\s+)?(?:dokument\w*|quelle\w*|kontext\w*|unterlagen|text\w*|handbuch\w*|auszu\w*|auszü\w*|abschnitt\w*)",
    r"\b(?:die|der|das|den|dem)\s+(?:\w+\s+)?(?:dokument\w*|quellen?|kontext|unterlagen|handbuch|text)\s+(?:besag\w+|sag\w+|nenn\w+|zeig\w+|beschreib\w+|erklär\w+|steht|zufolge)",
    r"\b(?:im|in der|in den) (?:text|dokument\w*|quellen?|dokumentation|handbuch|kontext) (?:heißt|steht)|\bwie in (?:der|dem|den) \w+ (?:beschrieben|erwähnt|angegeben|genannt)",
    r"(?:\bselon|\bd['’]après|\bconformément (?:à|aux?))\s+(?:la|les|le|l['’]|ces|cette|ce|aux?)?\s*(?:\w+\s+)?(?:documentation|documents?|sources?|contexte|textes?|passages?|extraits?|manuel)",
    r"\b(?:la|les|le)\s+(?:documentation|documents?|sources?|contexte|textes?|passages?)(?:\s+fournie?s?)?\s+(?:indiqu\w+|précis\w+|mentionn\w+|di(?:t|sent)|montr\w+|décri\w+|expliqu\w+)",
    r"\b(?:según|de acuerdo con|conforme a|basándo(?:me|nos|se) en|con base en)\s+(?:la|las|el|los|esta|estos?|lo)\s+(?:\w+\s+)?(?:documentación|documentos?|fuentes?|contexto|textos?|pasajes?|fragmentos?|manual)",
    r"\b(?:secondo|in base a(?:lla|lle|i|l)?|stando a(?:lla|lle|i|l)?)\s+(?:la|le|il|i|gli|l['’])?\s*(?:\w+\s+)?(?:documentazione|documenti|fonti|fonte|contesto|testo|manuale)",
    r"\b(?:segundo|de acordo com|conforme|com base n[oa]s?)\s+(?:a|o|as|os)?\s*(?:documentação|documentos?|fontes?|contexto|textos?|trechos?|manual)",
    r"\b(?:volgens|op basis van)\s+(?:de|het|deze)\s+(?:\w+\s+)?(?:documentatie|documenten|bron\w*|context|tekst|handleiding)",
    r"\b(?:według|zgodnie z|na podstawie)\s+(?:\w+\s+)?(?:dokumentac\w+|dokument\w+|źród\w+|kontekst\w*|tekst\w*)",
    r"\b(?:согласно|по данным|исходя из|в соответствии с|как указано в|на основе)\s+(?:\w+\s+)?(?:документ\w+|источник\w*|контекст\w*|текст\w*)",
    r"\b(?:belgelere|dokümanlara|kaynaklara|belgeye|dokümantasyona|metne|bağlama)\s+göre",
    r"(?:根据|依据|按照|據|根據|依照).{0,8}(?:文档|文件|资料|來源|来源|上下文|文本|文檔|資料|内容)|(?:文档|文件|资料|上下文|文檔|資料)(?:中)?(?:指出|提到|显示|說明|说明|表示|顯示)",
    r"(?:資料|文書|ドキュメント|文脈|コンテキスト|出典|情報源|テキスト)(?:によると|によれば|に基づ|では|には.{0,20}と(?:ある|あります|書かれ))",
    r"(?:문서|자료|출처|문맥|컨텍스트|문헌)(?:에|들에)?\s*(?:따르면|의하면|근거)",
    r"(?:وفق[اً]*|بحسب|حسب|استناد[اً]* إلى|بناء[ً]? على)\s*(?:ل)?\s*(?:ال|لل)?(?:وثائق|مستندات|مصادر|سياق|نص|وثيقة|مصدر|توثيق)",
    r"(?:दस्तावेज़?ों?|दस्तावेज़?|स्रोतों?|संदर्भ)\s+के\s+(?:अनुसार|आधार पर)",
)
_NEGATORS = (
    r"\b(?:not(?! only)|never|without|instead of|rather than|regardless of|irrespective of|independent(?:ly)? of|ignor(?:e|es|ed|ing)|disregard(?:s|ed|ing)?|no need|nothing|none|neither"
    r"|despite|contrary to|unlike|apart from|refus(?:e|es|ed|ing)|skip(?:ped|ping)?|cannot|nicht|ohne|ungeachtet|unabhängig|statt|entgegen|pas|sans|sin|senza|sem|zonder|niet|bez|nie|не|без|non|não|no)\b"
    r"|n['’]t\b|不是|没有|沒有|不(?:根据|依据|按照|看)|ではなく|なしに|않고|아니라|دون|بدون|ليس|(?<!\w)नहीं"
)
_ACKNOWLEDGED = (
    rf"\b{_SOURCE}(?:\s+(?:that|which|I)\b[^.;!?]{{0,40}})?\s+(?:(?:do|does|did|could|can)(?:\s+not|n['’]t)|cannot|never)(?:\s+(?:appear|seem) to)?(?:\s+(?:\w+ly|actually|even))?\s+{_HAS}\b",
    rf"\b{_SOURCE}\s+(?:(?:do|does)(?:\s+not|n['’]t)\s+(?:appear|seem)\s+(?:to be )?|(?:is|are|was|were)\s+(?:not\s+|n['’]t\s+)(?:directly\s+|really\s+)?)(?:relevant|related|helpful|sufficient|about|enough)",
    rf"\b{_SOURCE}\s+(?:is|are|was|were)\s+(?:irrelevant|unrelated|insufficient|silent|empty|off[- ]topic|inconclusive)",
    rf"\b{_SOURCE}\s+(?:(?:contain|include|provide|offer|give|make|ha)(?:s|ve)?|say|says)\s+(?:no|nothing)\b",
    rf"\b(?:none|neither|nothing)\s+(?:of|in)\s+{_SOURCE}",
    rf"\bno\s+(?:\w+\s+){{0,2}}(?:information|info|documents?|mention|answers?|results?|details?|sources?|passages?|matches|material|references?)\s+(?:(?:on|about|for|regarding|concerning|of|to)\s+[^.;!?]{{1,60}}?\s+)?(?:(?:was|were|is|are|has been|have been|could be|can be)\s+)?(?:found|available|provided|given|retrieved|located|contained|included|in {_SOURCE})",
    rf"\bno\s+(?:relevant|matching|supporting|pertinent|sufficient|useful|related)\s+{_FACT}",
    rf"\b(?:there (?:is|was|were|are)|I (?:see|found|find)|we (?:see|found|find))\s+(?:no|nothing|not any)\b[^.;!?]{{0,80}}\b(?:in|within|from)\s+{_SOURCE}",
    rf"\b(?:nothing|no evidence)\s+(?:relevant|about|on|regarding)?[^.;!?]{{0,40}}(?:was found|in {_SOURCE}|could be found|was retrieved)",
    rf"\bnot\s+(?:(?:explicitly|directly|clearly)\s+)?(?:found|mentioned|stated|included|available|present|contained|covered|specified|described|given|addressed|answered|discussed|provided)?\s*(?:in|by|within|from)\s+{_SOURCE}",
    rf"\b(?:I|we)(?:\s+(?:was|were|am|are)\s+(?:unable|not able)\s+to|\s+(?:could|can|did|do)(?:\s+not|n['’]t)|\s+cannot)\s+(?:find|locate|see|identify)\b[^.;!?]{{0,60}}\b(?:{_FACT}|it|this|that|answer|about|regarding|in {_SOURCE})\b",
    r"\b(?:I|we)(?:\s+(?:was|were|am|are)\s+(?:unable|not able)\s+to|\s+(?:could|can|do|did)(?:\s+not|n['’]t)|\s+cannot|['’]m (?:unable|not able) to)\s+(?:answer|determine|tell|say|confirm|verify|provide an answer|give an answer|respond)\b",
    rf"\b(?:do|does|did)(?:\s+not|n['’]t)\s+have\s+(?:enough|sufficient|any|the|adequate|relevant|access to)\s+(?:\w+\s+){{0,2}}{_FACT}",
    rf"\b(?:insufficient|not enough|not sufficient|inadequate)\s+{_FACT}\s*(?:$|[.,;:!]|\b(?:to|is|are|was|were|in|for|provided|available|about|on)\b)",
    rf"\black(?:s|ing)?\s+(?:the\s+|sufficient\s+|enough\s+|any\s+|relevant\s+)+{_FACT}",
    r"\b(?:I|we)\s+(?:do not|don['’]t)\s+know(?:\s+(?:the answer|this|that|based|from|whether|if|what|which|when|where|how))?\s*(?:\b(?:based|from|whether|if|what|which|when|where|how)\b|[.,;:!]|$)",
    r"\A\W*(?:verdict\W{0,6})?(?:not found|insufficient evidence)\b",
    r"\bkeine\s+(?:\w+\s+)?(?:informationen|angaben|hinweise|antwort|dokumente|treffer|belege|quellen)\b[^.;!?]{0,60}(?:gefunden|finden|verfügbar|vorhanden|enthalten|in den|im kontext|vor\b|zu entnehmen)",
    r"\b(?:dokument\w*|quellen?|kontext|unterlagen|texte?)\s+(?:enth[aä]lt\w*|liefer\w*|nenn\w*|erwähn\w*|geb\w*|gibt|beantwort\w*)\b[^.;!?]{0,60}\b(?:keine?n?|nichts?)\b",
    r"\bnicht (?:genügend|genug|ausreichend)\w* (?:informationen|angaben|kontext|belege)|\bich wei(?:ß|ss) (?:es |das )?nicht\b|\b(?:kann|konnte) (?:ich )?[^.;!?]{0,60}nicht (?:beantworten|finden)\b|\bnicht (?:in den|im) (?:\w+ )?(?:dokument\w*|quellen|kontext|unterlagen)",
    r"\baucune?s?\s+(?:information|document|réponse|résultat|mention|donnée|source)s?\b[^.;!?]{0,60}(?:trouvée?s?|disponibles?|dans|fournie?s?)|\b(?:documents?|sources?|contexte|documentation|textes?|passages?)(?:\s+\w+)?\s+ne\s+\w+\s+(?:pas|aucune?|rien)\b",
    r"\bn['’](?:ai|avons) (?:pas|rien) (?:trouvé|assez|suffisamment)|\bn['’]ai rien trouvé|\bpas (?:assez|suffisamment) d['’]informations?|\bje ne (?:le )?sais pas\b|\bje ne (?:peux|trouve) pas\b|\binformations? insuffisantes?",
    r"\bno (?:se )?(?:encontr\w+|hay|existe|he encontrado|hemos encontrado|dispongo de)\s+(?:\w+\s+)?(?:información|ning\w+|datos|documentos|resultados|respuesta|nada)|\b(?:documentos?|fuentes?|contexto|documentación|textos?)(?:\s+\w+)?\s+no\s+(?:contien\w+|mencion\w+|incluy\w+|indic\w+|proporcion\w+|responde\w*|dice\w*)|\bno (?:tengo|tenemos|hay) (?:suficiente\s+)?información|\bno lo sé\b|\binformación insuficiente",
    r"\bnon (?:ho|abbiamo) trovato|\bnessun[ao']?\s*(?:informazion\w+|documento|risultato|risposta)\b|\b(?:document\w+|fonti|contesto)\s+non\s+(?:conten\w+|menzion\w+|fornis\w+|dic\w+)|\bnon (?:lo so|ho (?:abbastanza|sufficienti) informazioni)|\binformazioni insufficienti",
    r"\bnão (?:encontrei|encontramos|há|foram? encontrad\w+|tenho)\s+(?:\w+\s+)?(?:informaç\w+|document\w+|resultad\w+|resposta|dados|nada|nenhum\w*)|\b(?:documentos?|fontes?|contexto)\s+não\s+(?:cont\w+|mencion\w+|inclu\w+|fornec\w+)|\bnão sei\b|\binformaç\w+ insuficientes?",
    r"\bgeen\s+(?:\w+\s+)?(?:informatie|documenten|antwoord|resultaten)\b[^.;!?]{0,50}(?:gevonden|beschikbaar|vinden|in de)|\b(?:documenten|bronnen|context)\s+(?:bevat\w*|noem\w*|vermeld\w*)\b[^.;!?]{0,40}\b(?:geen|niet)\b|\bik weet het niet\b",
    r"\bnie (?:znalazłem|znalazłam|znaleziono|znaleźliśmy|mam wystarczających)|\b(?:dokumenty|źródła|kontekst)\s+nie\s+(?:zawiera\w*|wspomina\w*|podaj\w*)|\bnie wiem\b|\bbrak (?:\w+ )?(?:informacji|danych)\b",
    r"\bне (?:найден\w*|нашл\w+|наш[её]л|удалось найти|знаю|могу ответить)|\b(?:документ\w*|источник\w*|контекст\w*|текст\w*)\s+(?:\w+\s+)?(?:не\s+(?:содерж\w+|упомина\w+|сказано|указан\w+)|нет)|\bнедостаточно (?:информации|данных)|\bнет (?:\w+ )?(?:информации|данных|сведений)",
    r"\b(?:bilgi|belge|yanıt|cevap) bulunamadı|\byeterli bilgi (?:yok|bulun\w*)|\bbilmiyorum\b|\b(?:belgeler|kaynaklar)(?:de|da)?\b[^.;!?]{0,40}(?:yok|içermiyor|geçmiyor)",
    r"(?:没有|沒有|未|无法|無法|找不到|未能)(?:找到|提供|提及|提到|包含|回答|确定|確定|相关|相關|足够|足夠|任何)|信息不足|資訊不足|我不知道",
    r"(?:見つかりません|見つからな|見つけられ|含まれていません|記載(?:されて|が|は)(?:いません|ありません)|言及(?:されて|が)(?:いません|ありません)|情報(?:が|は)(?:不足|十分では|ありません)|わかりません|分かりません|不明です)",
    r"(?:찾을 수 없|찾지 못|포함(?:되어|하고) 있지 않|언급(?:되어|되지|하지)\s*(?:있지 )?않|정보가 (?:부족|없)|알 수 없|모르겠)",
    r"(?:لم (?:أجد|يتم العثور|أعثر|نجد|يرد)|لا (?:توجد|يوجد|تتضمن|تحتوي|تذكر|أعرف|يذكر)|لا تتوفر|معلومات غير كافية)",
    r"(?:जानकारी|उत्तर|उल्लेख)[^।.!?]{0,30}(?:नहीं (?:मिल|है|हैं|दी|मिला|मिली)|उपलब्ध नहीं)|मुझे नहीं पता|पर्याप्त जानकारी नहीं",
)
_REFERENCE = re.compile("|".join(f"(?:{pattern})" for pattern in _REFERENCES), re.IGNORECASE)
_ACKNOWLEDGEMENT = re.compile(
    "|".join(f"(?:{pattern})" for pattern in _ACKNOWLEDGED), re.IGNORECASE
)
_NEGATOR = re.compile(_NEGATORS, re.IGNORECASE)
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_MARKER = re.compile(
    r"(?<![=(\[,:]\s)(?<![=(\[,])(?<!list\s)(?<!array\s)(?<!index\s)\[\^?(?:(?:source|doc|document|ref)\s*)?(?P<numbers>\d{1,3}(?:\s*[,;–-]\s*\d{1,3})*)\](?!\s*=|[(\[.]\w)",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[.;:!?。！？\n]|,?\s+but\s|,\s*(?:aber|mais|pero|ma|mas|но)\s")
_LOOK_BACK = 60


def refers_to_sources(text: str, n_sources: int | None = None) -> str:
    """First words by which an answer refers to its sources; empty where it does not.

    Parameters
    ----------
    text
        The answer. What stands in code is no reference.
    n_sources
        How many sources there were: a marker `[7]` among fewer refers to nothing. Default: any number counts.

    Examples
    --------
    >>> refers_to_sources("According to the retrieved documentation, it rains.")
    'According to the retrieved documentation'
    >>> refers_to_sources("Without looking at the provided context: it rains.")
    ''
    """
    plain = _CODE.sub(" ", text[:MOST])
    for found in _MARKER.finditer(plain):
        if n_sources is None or any(
            int(number) <= n_sources for number in re.findall(r"\d+", found["numbers"])
        ):
            return found[0]
    for found in _REFERENCE.finditer(plain):
        before = plain[max(found.start() - _LOOK_BACK, 0) : found.start()]
        clause = _CLAUSE.split(before)[-1]
        if not _NEGATOR.search(clause):
            return found[0]
    return ""


def acknowledges_nothing_found(text: str) -> str:
    """First words by which an answer says that its sources do not answer, or that it does not know; empty where it does not.

    Examples
    --------
    >>> acknowledges_nothing_found("The documents do not mention the price.")
    'The documents do not mention'
    >>> acknowledges_nothing_found("There is no shortage of information.")
    ''
    """
    found = _ACKNOWLEDGEMENT.search(_CODE.sub(" ", text[:MOST]))
    return found[0] if found else ""
