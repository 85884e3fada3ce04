"""The rule for waiting, without a server and without time: which wait goes how, and when each asks."""

import sys
import unittest
from pathlib import Path

from redis import exceptions as errors
from redis.crc import key_slot

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from redis_lock_client._common import NOTIFY_QUEUE, REFUSED
from redis_lock_client._waiting import (
    EVERYBODY,
    RATE,
    Line,
    State,
    Turn,
    Way,
    is_cluster,
    tag_of,
    way,
)

NO_RIGHT = errors.NoPermissionError("this user has no permissions to publish on the channel of NOTIFY")
FULL = errors.ResponseError("LIMIT keys, owners and channels of places would take more than lock.max-place-bytes")
OLD = errors.ResponseError('unknown option "NOTIFY"')
MOVED_AWAY = errors.ResponseError("NOTIFYSLOT another node serves the slot of this channel")


def subscribed(*turns):
    """A line with a confirmed subscription, in which these have asked and had null at the moment 100."""
    line = Line()
    line.ask("", cluster=False)
    line.heard([b"subscribe", line.name, 1], 100.0)
    for turn in turns:
        line.enter(turn)
        turn.sends()
        line.answered(turn, None, 100.0, notified=True)
    return line


def message(line, owner):
    return [b"message", line.name, owner]


class WayTest(unittest.TestCase):
    def test_a_wait_blocks_while_there_is_a_slot_and_stands_in_the_queue_else(self):
        slots = iter([True, False])
        self.assertEqual(way(once=False, crowded=False, has_slot=lambda: next(slots)), Way.BLOCK)
        self.assertEqual(way(once=False, crowded=False, has_slot=lambda: next(slots)), Way.QUEUE)

    def test_who_tries_once_or_has_no_connection_takes_no_slot(self):
        self.assertEqual(way(once=True, crowded=False, has_slot=self.fail), Way.ONCE)
        self.assertEqual(way(once=False, crowded=True, has_slot=self.fail), Way.QUEUE)


class TurnTest(unittest.TestCase):
    def setUp(self):
        self.turn = Turn("me")
        self.line = subscribed(self.turn)

    def null(self, moment):
        """Sends the request that is due, and has null."""
        self.turn.sends()
        self.line.answered(self.turn, None, moment, notified=True)

    def test_a_wait_asks_again_by_itself_within_a_third_of_queue(self):
        self.assertGreater(self.turn.due, 100.0 + NOTIFY_QUEUE / 3 * 0.7)
        self.assertLessEqual(self.turn.due, 100.0 + NOTIFY_QUEUE / 3)

    def test_a_message_lets_its_owner_ask_at_once_and_nobody_else(self):
        other = Turn("other")
        self.line.enter(other)
        other.sends()
        self.line.answered(other, None, 100.0, notified=True)
        self.assertEqual(self.line.heard(message(self.line, b"me"), 101.0), [self.turn])
        self.assertEqual(self.turn.due, 101.0)
        self.assertGreater(other.due, 105.0)

    def test_a_message_for_nobody_here_or_of_another_channel_does_nothing(self):
        self.assertEqual(self.line.heard(message(self.line, b"stranger"), 101.0), [])
        self.assertEqual(self.line.heard([b"message", b"another", b"me"], 101.0), [])
        self.assertGreater(self.turn.due, 105.0)

    def test_a_doubled_message_is_one_request(self):
        self.assertEqual(self.line.heard(message(self.line, b"me"), 101.0), [self.turn])
        self.assertEqual(self.line.heard(message(self.line, b"me"), 101.0), [])

    def test_a_message_while_a_request_is_unanswered_lets_it_be_repeated_after_null(self):
        self.turn.sends()
        self.assertEqual(self.line.heard(message(self.line, b"me"), 101.0), [])
        self.line.answered(self.turn, None, 102.0, notified=True)
        self.assertEqual(self.turn.due, 102.0)

    def test_messages_that_are_followed_by_null_bring_pauses_that_double_up_to_a_second(self):
        moment, waits = 101.0, []
        for _ in range(9):
            self.line.heard(message(self.line, b"me"), moment)
            waits.append(round(self.turn.due - moment, 6))
            moment = self.turn.due
            self.null(moment)
        self.assertEqual(waits, [0, 0, 0.1, 0.2, 0.4, 0.8, 1, 1, 1])

    def test_an_answer_without_a_message_ends_the_pauses(self):
        for moment in (101.0, 102.0, 103.0):
            self.line.heard(message(self.line, b"me"), moment)
            self.null(moment)
        self.null(115.0)
        self.line.heard(message(self.line, b"me"), 115.0)
        self.assertEqual(self.turn.due, 115.0)

    def test_a_star_does_not_end_the_pauses(self):
        for moment in (101.0, 102.0, 103.0):
            self.line.heard(message(self.line, b"me"), moment)
            self.null(moment)
        self.line.heard(message(self.line, b"*"), 105.0)
        self.null(105.0)
        self.line.heard(message(self.line, b"me"), 105.0)
        self.assertEqual(round(self.turn.due - 105.0, 6), 0.2)

    def test_an_error_leaves_the_pause_to_the_wait(self):
        self.turn.sends()
        self.line.answered(self.turn, errors.TimeoutError(), 101.0, notified=True)
        self.assertEqual(self.turn.due, 101.0)
        self.assertFalse(self.turn.unanswered)


class EverybodyTest(unittest.TestCase):
    def test_a_star_lets_all_ask_no_faster_than_the_rate_and_once_a_second(self):
        turns = [Turn(f"owner {number}") for number in range(100)]
        line = subscribed(*turns)
        self.assertEqual(len(line.heard(message(line, b"*"), 101.0)), 100)
        self.assertEqual(min(turn.due for turn in turns), 101.0)
        self.assertAlmostEqual(max(turn.due for turn in turns), 101.0 + 99 / RATE)
        for turn in turns:
            turn.sends()
            line.answered(turn, None, 101.1, notified=True)
        line.heard(message(line, b"*"), 101.2)
        self.assertEqual(min(turn.due for turn in turns), 101.0 + EVERYBODY)
        self.assertEqual(line.heard(message(line, b"*"), 101.3), [])

    def test_all_ask_when_the_subscription_is_there_again(self):
        turn = Turn("me")
        line = subscribed(turn)
        first = line.name
        line.broken(errors.ConnectionError(), 101.0)
        self.assertIsNone(line.channel)
        self.assertTrue(line.wants(101.0))
        self.assertNotEqual(line.ask("", cluster=False), first)
        self.assertEqual(line.heard([b"subscribe", line.name, 1], 101.5), [turn])
        self.assertEqual((turn.due, line.channel), (101.5, line.name))

    def test_all_ask_when_the_connection_of_the_requests_is_gone(self):
        turn = Turn("me")
        line = subscribed(turn)
        self.assertEqual(line.part(101.0), [turn])
        self.assertTrue(line.wants(101.0))

    def test_a_slot_that_moves_away_takes_the_subscription(self):
        line = subscribed()
        line.heard([b"sunsubscribe", line.name, 0], 101.0)
        self.assertEqual((line.channel, line.wants(101.0)), (None, True))


class RefusalTest(unittest.TestCase):
    def setUp(self):
        self.turn = Turn("me")
        self.line = subscribed(self.turn)

    def test_without_notify_all_ask_each_second_and_one_is_to_tell_it(self):
        for why in (NO_RIGHT, OLD, FULL):
            line = subscribed(self.turn)
            self.assertEqual(line.heed(why, 101.0, notified=True), (True, [self.turn]))
            self.assertIsNone(line.channel)
            self.turn.sends()
            line.answered(self.turn, None, 101.0, notified=False)
            self.assertLessEqual(self.turn.due, 102.0)
            self.assertEqual((line.refusal(), line.refusal()), (why, None))

    def test_others_whose_request_was_on_its_way_ask_again_as_well(self):
        self.line.heed(NO_RIGHT, 101.0, notified=True)
        self.assertEqual(self.line.heed(NO_RIGHT, 101.0, notified=True), (True, []))

    def test_an_error_of_another_kind_is_none_of_its_business(self):
        for error in (
            errors.ResponseError("LIMIT key has lock.max-waiters-per-key waiters"),
            errors.ResponseError("OOM"),
        ):
            self.assertEqual(self.line.heed(error, 101.0, notified=True), (False, []))
        self.assertEqual(self.line.heed(FULL, 101.0, notified=False), (False, []))
        self.assertIsNotNone(self.line.channel)

    def test_a_right_that_is_missing_is_asked_for_again_after_a_reconnect_and_not_before(self):
        self.line.heed(NO_RIGHT, 101.0, notified=True)
        self.assertFalse(self.line.wants(1e9))
        self.line.reconnected()
        self.assertFalse(self.line.wants(1e9))
        self.line.part(200.0)
        self.line.reconnected()
        self.assertTrue(self.line.wants(200.0))

    def test_a_subscription_that_is_not_confirmed_is_tried_again_later(self):
        line = Line()
        line.ask("", cluster=False)
        line.broken(errors.TimeoutError(), 100.0)
        self.assertEqual((line.state, line.is_decided), (State.REFUSED, True))
        self.assertFalse(line.wants(100.0 + REFUSED))  # nobody waits
        line.enter(self.turn)
        self.assertEqual((line.wants(100.0 + REFUSED - 1), line.wants(100.0 + REFUSED)), (False, True))

    def test_it_is_told_once_as_long_as_nothing_works(self):
        self.line.heed(NO_RIGHT, 101.0, notified=True)
        self.line.refusal()
        self.line.part(102.0)
        self.line.reconnected()
        self.line.ask("", cluster=False)
        self.line.heard([b"subscribe", self.line.name, 1], 102.0)
        self.line.heed(NO_RIGHT, 103.0, notified=True)
        self.assertIsNone(self.line.refusal())

    def test_a_channel_whose_slot_has_moved_is_replaced_once_without_a_word(self):
        self.assertEqual(self.line.heed(MOVED_AWAY, 101.0, notified=True), (True, []))
        self.assertEqual((self.line.state, self.line.refusal()), (State.NONE, None))
        self.line.ask("", cluster=False)
        self.line.heard([b"subscribe", self.line.name, 1], 102.0)
        self.line.heed(MOVED_AWAY, 103.0, notified=True)
        self.assertEqual(self.line.state, State.REFUSED)
        self.assertEqual((self.line.wants(103.0), self.line.wants(103.0 + REFUSED)), (False, True))

    def test_a_server_that_keeps_places_for_less_is_asked_sooner(self):
        lower = errors.ResponseError("QUEUE must be a whole number from 1 to 6000")
        asked = self.line.queue(notifies=True)
        # Two requests were on their way.
        for _ in range(2):
            self.assertEqual(self.line.heed(lower, 101.0, notified=True, queue=asked), (True, []))
        self.assertEqual((self.line.queue(notifies=True), self.line.interval(notifies=True)), (6.0, 2.0))
        self.assertEqual(self.line.heed(lower, 101.0, notified=True, queue=6.0), (False, []))


class ChannelTest(unittest.TestCase):
    def test_each_channel_is_another_one_with_the_prefix_of_the_application(self):
        line = Line()
        names = {line.ask("app1:", cluster=False) for _ in range(10)}
        self.assertEqual(len(names), 10)
        self.assertTrue(all(name.startswith(b"lock:notify:app1:") for name in names))

    def test_in_a_cluster_it_has_the_slot_of_a_key_that_is_waited_for(self):
        line = Line()
        for key in ("report", b"\xff\x00", "{tag}key"):
            line.key = key
            name = line.ask("app1:", cluster=True)
            self.assertEqual(key_slot(name), key_slot(key if isinstance(key, bytes) else key.encode()))
            self.assertLess(len(name), 100)
        self.assertEqual(key_slot(tag_of(0).encode()), 0)

    def test_hello_tells_a_node_of_a_cluster_from_a_server_alone(self):
        alone = [b"server", b"redis", b"proto", 2, b"mode", b"standalone", b"modules", [[b"name", b"lock"]]]
        self.assertFalse(is_cluster(alone))
        self.assertTrue(is_cluster([*alone[:5], b"cluster", *alone[6:]]))
        self.assertTrue(is_cluster({"mode": "cluster"}))


if __name__ == "__main__":
    unittest.main()
