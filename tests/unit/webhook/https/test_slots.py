from __future__ import annotations

import math

from cpupool.webhook.https.slots import Slots

HERE, THERE = "192.0.2.1", "192.0.2.2"


def slots(most: int = 6) -> Slots[str]:
    """Make slots; reading clients may have two thirds of them."""
    return Slots(most, reading_s=1.0, stay_s=10.0)


def test_while_there_are_slots_no_client_is_evicted() -> None:
    kept = slots()
    for client in "abc":
        kept.assign(client, HERE, 0.0)
    assert kept.victim(HERE) is None
    kept.assign("d", HERE, 0.0)
    assert kept.victim(HERE)
    kept.release("b", HERE)
    kept.release("b", HERE)
    assert len(kept) == 3
    assert kept.victim(HERE) is None


def test_the_oldest_reading_client_is_evicted_and_keeps_its_slot_for_a_while() -> None:
    kept = slots()
    for second, client in enumerate("abcd"):
        kept.assign(client, HERE, float(second))
    assert kept.victim(HERE) == ("a", 1.0)
    kept.release("a", HERE)
    kept.assign("e", HERE, 4.0)
    assert kept.victim(HERE) == ("b", 2.0)


def test_a_client_with_a_whole_request_is_not_reading_any_more() -> None:
    kept = slots()
    for client in "abcd":
        kept.assign(client, HERE, 0.0)
    kept.has_request("a", HERE, 1.0)
    assert [kept.is_reading(client, HERE) for client in "abe"] == [False, True, False]
    assert kept.victim(HERE) is None
    kept.assign("e", HERE, 2.0)
    assert kept.victim(HERE) == ("b", 1.0)


def full(addresses: str = "HHHHHH") -> Slots[str]:
    """Fill the slots with idle clients, a second apart: H or T for each one's address."""
    kept = slots()
    for second, (client, letter) in enumerate(zip("abcdef", addresses, strict=True)):
        address = {"H": HERE, "T": THERE}[letter]
        kept.assign(client, address, float(second))
        kept.has_request(client, address, float(second))
        kept.has_answer(client, address)
    return kept


def test_if_all_slots_are_taken_the_idle_client_with_the_oldest_slot_is_evicted() -> None:
    kept = full()
    kept.has_request("a", HERE, 9.0)
    kept.has_answer("a", HERE)
    assert kept.victim(THERE) == ("a", 10.0), "another request keeps no slot"


def test_a_client_has_its_answer_before_it_is_evicted() -> None:
    kept = full()
    kept.has_request("a", HERE, 9.0)
    assert kept.victim(THERE) == ("b", 11.0)
    for client in "bcdef":
        kept.has_request(client, HERE, 9.0)
    assert kept.victim(THERE) == ("a", math.inf)
    kept.has_answer("c", HERE)
    assert kept.victim(THERE) == ("c", 12.0)


def test_the_address_with_the_most_active_and_idle_clients_loses_one() -> None:
    kept = full("THHTHH")
    assert kept.victim(THERE) == ("b", 11.0)
    kept.release("b", HERE)
    kept.assign("g", THERE, 20.0)
    kept.has_request("g", THERE, 20.0)
    assert kept.victim(THERE) == ("a", 10.0), "both have three"


def test_an_address_whose_clients_are_all_active_takes_no_slot_of_others() -> None:
    kept = full("THHHHH")
    for client in "bcdef":
        kept.has_request(client, HERE, 9.0)
    assert kept.victim(THERE) == ("b", math.inf)
    kept.has_answer("c", HERE)
    assert kept.victim(THERE) == ("c", 12.0)


def test_of_addresses_with_equally_many_the_oldest_client_is_evicted() -> None:
    kept = full("THHHTT")
    kept.has_request("a", THERE, 9.0)
    kept.has_answer("a", THERE)
    assert kept.victim(HERE) == ("a", 10.0)


def test_a_client_that_has_gone_does_not_become_active() -> None:
    kept = slots()
    kept.assign("a", HERE, 0.0)
    kept.release("a", HERE)
    kept.has_request("a", HERE, 1.0)
    kept.has_answer("a", HERE)
    assert len(kept) == 0


def test_the_address_with_more_reading_clients_loses_one_at_once() -> None:
    kept = slots()
    for client in "abcd":
        kept.assign(client, HERE, 0.0)
    for gone, client in ("ae", "bf"):
        assert kept.victim(THERE) == (gone, 0.0)
        kept.release(gone, HERE)
        kept.assign(client, THERE, 5.0)
    # Both have two: a third would not be fair.
    assert kept.victim(THERE) == ("c", 1.0)


def test_the_address_with_fewer_reading_clients_is_next() -> None:
    kept = slots()
    kept.assign("a", HERE, 0.0)
    assert kept.fewest_reading([HERE, THERE]) == THERE
    kept.assign("b", THERE, 0.0)
    assert kept.fewest_reading([HERE, THERE]) == HERE
