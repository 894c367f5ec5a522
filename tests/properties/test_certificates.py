from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cpupool.webhook.https import certificate_renewal
from tests.certificates import (
    CA,
    ED25519,
    GOOD,
    NOW,
    OTHER,
    P256,
    RSA,
    certificate,
    data,
    kept,
    pem,
    pem_of,
    verify,
)
from tests.searching import examples

PIECES = (
    *GOOD.values(),
    *OTHER.values(),
    pem(RSA),
    pem(P256),
    pem_of(certificate(P256, constraints=CA)),
    pem_of(certificate(RSA, constraints=CA)),
    pem_of(certificate(ED25519, constraints=CA)),
)


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """Draw something that was once an entry of a Secret, or never."""
    text = draw(st.sampled_from(PIECES))
    match draw(st.sampled_from(["whole", "cut", "bent", "two", "bytes"])):
        case "cut":
            return text[: draw(st.integers(0, len(text)))]
        case "bent":
            place = draw(st.integers(0, len(text) - 1))
            return text[:place] + draw(st.binary(min_size=1, max_size=4)) + text[place + 1 :]
        case "two":
            return text + draw(st.sampled_from(PIECES))
        case "bytes":
            return draw(st.binary(max_size=200))
    return text


@examples(100)
@given(st.dictionaries(st.sampled_from([*GOOD]), entries()), st.booleans(), entries())
def test_whatever_the_secret_holds_one_pass_makes_it_good(
    hostile: dict[str, bytes], rest: bool, in_use: bytes
) -> None:
    held = kept(certificate_renewal.read({**(GOOD if rest else {}), **hostile}, in_use), NOW)
    verify(held.serving, held.bundle, NOW)
    again = certificate_renewal.read(data(held))
    assert again.problems == ()
    assert kept(again, NOW) == again
