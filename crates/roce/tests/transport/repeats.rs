//! The last acknowledgement, which a connection that ends repeats.

use crate::lone::{ACK, INVALID};
use crate::responder::{LAST, ONLY, fetch_add, ready, reth};
use rkey_roce::packet::Request;

/// A side that ends its connection does not answer retransmissions, so it repeats the acknowledgement that may have been lost.
#[test]
fn the_last_acknowledgement_can_be_repeated() {
    let mut lone = ready();
    lone.connection.repeat_acknowledgement();
    assert_eq!(lone.answers(), [], "nothing was executed");
    lone.request(500, ONLY, &[2]);
    assert_eq!(lone.answers(), [(500, ACK, 1)]);
    for _ in 0..2 {
        lone.connection.repeat_acknowledgement();
        assert_eq!(lone.answers(), [(500, ACK, 1)]);
    }
    lone.request(501, LAST, &[3]);
    assert_eq!(lone.answers(), [(501, INVALID, 1)]);
    lone.connection.repeat_acknowledgement();
    assert_eq!(lone.answers(), [], "the refusal stays the last answer");
    let mut lone = ready();
    lone.request(500, ONLY, &[2]);
    assert_eq!(lone.answers(), [(500, ACK, 1)]);
    lone.connection.flush();
    lone.connection.repeat_acknowledgement();
    assert_eq!(lone.answers(), [], "nothing is sent after the end");
}

/// Soft-RoCE takes an acknowledgement of a read's packet for the read's end, although its data was lost.
#[test]
fn reads_and_atomics_at_the_end_are_not_acknowledged_without_their_data() {
    let mut lone = ready();
    lone.request(500, ONLY, &[2]);
    lone.request(501, fetch_add(0), &[]);
    lone.request(502, Request::Read(reth(0, 1)), &[]);
    lone.sent();
    lone.connection.repeat_acknowledgement();
    assert_eq!(lone.answers(), [(500, ACK, 1)]);
    lone.request(500, ONLY, &[2]);
    assert_eq!(lone.answers(), [(500, ACK, 1)], "a duplicate");
    lone.request(503, ONLY, &[2]);
    assert_eq!(lone.answers(), [(503, ACK, 4)]);
    lone.connection.repeat_acknowledgement();
    assert_eq!(lone.answers(), [(503, ACK, 4)]);
}
