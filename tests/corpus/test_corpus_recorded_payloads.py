"""What is kept of a payload that a stranger's system states."""

import json

from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus.recorded_payloads import BESIDE, MAX_SHORT_CHARS, stated_payload
from rag_eval.records.citation import PAYLOAD_FIELDS

KEYS = (*PAYLOAD_FIELDS, *BESIDE)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.just("\ud800\x00"),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=40,
)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), VALUES, max_size=8))
def test_every_payload_can_be_stored(values):
    kept = stated_payload(values)
    assert set(kept) == set(values) & set(KEYS)
    text = json.dumps(kept, allow_nan=False, ensure_ascii=False)
    text.encode("utf-8")
    assert "\\u0000" not in text
    assert stated_payload(kept) == kept


def test_values_keep_their_type_so_that_a_wrong_one_stays_wrong():
    plain = {
        "doc_id": "a",
        "tokens": 3,
        "offsets": {"start": 0, "end": 5, "unit": "char"},
        "score_raw": -0.5,
        "segment": True,
        "order": ["citations", "answer"],
        "page": None,
    }
    assert stated_payload(plain) == plain
    odd = stated_payload(
        {
            "tokens": float("nan"),
            "k_pos": 10**400,
            "rev": "x" * 10**6,
            "window": {"a": {"b": {"c": 1}}},
            "section_id": [1, {2}],
        }
    )
    assert (odd["tokens"], odd["k_pos"]) == ("a number out of range",) * 2
    assert len(odd["rev"]) == MAX_SHORT_CHARS
    assert odd["window"] == {"a": {"b": "..."}}
    assert odd["section_id"] == [1, "..."]
