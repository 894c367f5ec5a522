from __future__ import annotations

import math

from cpupool.https.places import Places

HERE, THERE = "192.0.2.1", "192.0.2.2"


def places(most: int = 6) -> Places[str]:
    """Make places; strangers may have two thirds of them."""
    return Places(most, stranger_s=1.0, stay_s=10.0)


def test_while_there_are_places_no_client_has_to_go() -> None:
    kept = places()
    for client in "abc":
        kept.take(client, HERE, 0.0)
    assert kept.in_the_way(HERE) is None
    kept.take("d", HERE, 0.0)
    assert kept.in_the_way(HERE)
    kept.leave("b", HERE)
    kept.leave("b", HERE)
    assert len(kept) == 3
    assert kept.in_the_way(HERE) is None


def test_the_oldest_stranger_goes_and_keeps_its_place_for_a_while() -> None:
    kept = places()
    for second, client in enumerate("abcd"):
        kept.take(client, HERE, float(second))
    assert kept.in_the_way(HERE) == ("a", 1.0)
    kept.leave("a", HERE)
    kept.take("e", HERE, 4.0)
    assert kept.in_the_way(HERE) == ("b", 2.0)


def test_a_client_with_a_whole_request_is_no_stranger_any_more() -> None:
    kept = places()
    for client in "abcd":
        kept.take(client, HERE, 0.0)
    kept.asks("a", HERE, 1.0)
    assert [kept.is_stranger(client, HERE) for client in "abe"] == [False, True, False]
    assert kept.in_the_way(HERE) is None
    kept.take("e", HERE, 2.0)
    assert kept.in_the_way(HERE) == ("b", 1.0)


def full(addresses: str = "HHHHHH") -> Places[str]:
    """Fill the places with known clients, a second apart: H or T for each one's address."""
    kept = places()
    for second, (client, letter) in enumerate(zip("abcdef", addresses, strict=True)):
        address = {"H": HERE, "T": THERE}[letter]
        kept.take(client, address, float(second))
        kept.asks(client, address, float(second))
        kept.has_answer(client, address)
    return kept


def test_if_all_places_are_taken_the_known_client_goes_that_has_had_its_place_for_longest() -> None:
    kept = full()
    kept.asks("a", HERE, 9.0)
    kept.has_answer("a", HERE)
    assert kept.in_the_way(THERE) == ("a", 10.0), "another request keeps no place"


def test_a_client_has_its_answer_before_it_goes() -> None:
    kept = full()
    kept.asks("a", HERE, 9.0)
    assert kept.in_the_way(THERE) == ("b", 11.0)
    for client in "bcdef":
        kept.asks(client, HERE, 9.0)
    assert kept.in_the_way(THERE) == ("a", math.inf)
    kept.has_answer("c", HERE)
    assert kept.in_the_way(THERE) == ("c", 12.0)


def test_the_address_with_the_most_known_clients_loses_one() -> None:
    kept = full("THHTHH")
    assert kept.in_the_way(THERE) == ("b", 11.0)
    kept.leave("b", HERE)
    kept.take("g", THERE, 20.0)
    kept.asks("g", THERE, 20.0)
    assert kept.in_the_way(THERE) == ("a", 10.0), "both have three"


def test_a_crowd_whose_clients_all_wait_for_answers_takes_no_place_of_others() -> None:
    kept = full("THHHHH")
    for client in "bcdef":
        kept.asks(client, HERE, 9.0)
    assert kept.in_the_way(THERE) == ("b", math.inf)
    kept.has_answer("c", HERE)
    assert kept.in_the_way(THERE) == ("c", 12.0)


def test_of_addresses_with_equally_many_the_oldest_client_goes() -> None:
    kept = full("THHHTT")
    kept.asks("a", THERE, 9.0)
    kept.has_answer("a", THERE)
    assert kept.in_the_way(HERE) == ("a", 10.0)


def test_a_client_that_has_gone_does_not_become_known() -> None:
    kept = places()
    kept.take("a", HERE, 0.0)
    kept.leave("a", HERE)
    kept.asks("a", HERE, 1.0)
    kept.has_answer("a", HERE)
    assert len(kept) == 0


def test_the_address_with_more_strangers_loses_one_at_once() -> None:
    kept = places()
    for client in "abcd":
        kept.take(client, HERE, 0.0)
    for gone, client in ("ae", "bf"):
        assert kept.in_the_way(THERE) == (gone, 0.0)
        kept.leave(gone, HERE)
        kept.take(client, THERE, 5.0)
    # Both have two: a third would not be fair.
    assert kept.in_the_way(THERE) == ("c", 1.0)


def test_the_address_with_fewer_strangers_is_next() -> None:
    kept = places()
    kept.take("a", HERE, 0.0)
    assert kept.fewest_strangers([HERE, THERE]) == THERE
    kept.take("b", THERE, 0.0)
    assert kept.fewest_strangers([HERE, THERE]) == HERE
