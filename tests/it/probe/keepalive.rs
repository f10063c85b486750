//! Connections kept between probes: used, given up, and not believed. Case 148.

use tidegate::model::{Detail, HttpProtocol, Outcome};

use super::fakes::{Fake, Step, ok, say};
use super::{MS, PATIENCE, ask_kept, http};

const H1: HttpProtocol = HttpProtocol::Http1;
const ROUNDS: usize = 300;

#[tokio::test]
async fn a_kept_connection_carries_every_following_question() {
    let mut fake = Fake::always(vec![ok()]).await;
    let mut kept = None;
    for round in 0..20 {
        let (answer, next) = ask_kept(fake.address, http(H1), PATIENCE, kept).await;
        assert_eq!((answer.outcome, answer.fresh), (Outcome::Ok, round == 0));
        assert_eq!(answer.timings.connect.is_some(), round == 0);
        kept = next;
    }
    assert_eq!((fake.connections(), fake.seen().len()), (1, 20));
}

/// Closes in the way of `end` at the moment that the second question of a connection has arrived.
async fn race(end: Step) -> usize {
    let fake =
        Fake::http1(move |moment| if moment.request == 0 { vec![ok()] } else { vec![end.clone()] }).await;
    let (mut kept, mut retries) = (None, 0);
    for round in 0..ROUNDS {
        let (answer, next) = ask_kept(fake.address, http(H1), PATIENCE, kept).await;
        assert_eq!(answer.outcome, Outcome::Ok, "round {round}: {}", answer.detail);
        assert!(answer.fresh && next.is_some());
        retries += usize::from(answer.retried);
        kept = next;
    }
    assert_eq!(fake.connections(), ROUNDS);
    retries
}

#[tokio::test]
async fn case_148_a_peer_that_closes_under_the_question_is_asked_again_on_a_fresh_connection() {
    assert_eq!(race(Step::Close).await, ROUNDS - 1);
    assert_eq!(race(Step::Reset).await, ROUNDS - 1);
}

#[tokio::test]
async fn case_148_a_peer_that_closes_while_idle_costs_no_failure() {
    let idle = "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    for steps in [vec![ok(), Step::Close], vec![ok(), Step::Reset], vec![ok(), say(idle), Step::Close]] {
        let fake = Fake::always(steps).await;
        let mut kept = None;
        for round in 0..ROUNDS {
            // Now and then the end is already there when the next question is put, now and then it is not.
            if round % 3 == 0 {
                tokio::task::yield_now().await;
            }
            if round % 10 == 0 {
                tokio::time::sleep(MS(1)).await;
            }
            let (answer, next) = ask_kept(fake.address, http(H1), PATIENCE, kept).await;
            assert_eq!(answer.outcome, Outcome::Ok, "round {round}: {}", answer.detail);
            kept = next;
        }
    }
}

#[tokio::test]
async fn case_148_the_same_on_a_fresh_connection_is_a_failure() {
    let fake = Fake::always(vec![Step::Close]).await;
    let (answer, kept) = ask_kept(fake.address, http(H1), PATIENCE, None).await;
    assert_eq!((answer.outcome, answer.retried, fake.connections()), (Outcome::Unreachable, false, 1));
    assert!(kept.is_none());
}

#[tokio::test]
async fn the_second_try_is_the_last_one() {
    let fake =
        Fake::http1(|m| if m.connection == 0 && m.request == 0 { vec![ok()] } else { vec![Step::Close] })
            .await;
    let (_, kept) = ask_kept(fake.address, http(H1), PATIENCE, None).await;
    let (answer, kept) = ask_kept(fake.address, http(H1), PATIENCE, kept).await;
    assert_eq!((answer.outcome, answer.fresh, answer.retried), (Outcome::Unreachable, true, true));
    assert_eq!(fake.connections(), 2);
    assert!(kept.is_none());
}

#[tokio::test]
async fn a_kept_connection_that_breaks_within_the_answer_is_a_failure() {
    let fake =
        Fake::http1(|m| if m.request == 0 { vec![ok()] } else { vec![say("HTTP/1.1 2"), Step::Close] }).await;
    let (_, kept) = ask_kept(fake.address, http(H1), PATIENCE, None).await;
    let (answer, _) = ask_kept(fake.address, http(H1), PATIENCE, kept).await;
    assert_eq!((answer.outcome, answer.fresh, answer.retried), (Outcome::Unreachable, false, false));
    assert_eq!(fake.connections(), 1);
}

#[tokio::test]
async fn both_tries_share_one_deadline() {
    let fake = Fake::http1(|m| match (m.connection, m.request) {
        (0, 0) => vec![ok()],
        (0, _) => vec![Step::Close],
        _ => vec![Step::Hang],
    })
    .await;
    let (_, kept) = ask_kept(fake.address, http(H1), PATIENCE, None).await;
    let (answer, _) = ask_kept(fake.address, http(H1), MS(300), kept).await;
    assert_eq!((answer.outcome, answer.retried), (Outcome::Timeout, true));
    assert!(answer.timings.total >= MS(300));
}

#[tokio::test]
async fn a_peer_that_says_close_is_not_kept() {
    for head in [
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ] {
        let fake = Fake::always(vec![say(head), Step::Close]).await;
        let (answer, kept) = ask_kept(fake.address, http(H1), PATIENCE, None).await;
        assert_eq!((answer.outcome, answer.detail), (Outcome::Ok, Detail::Status(200)));
        assert!(kept.is_none(), "{head}");
    }
}

#[tokio::test]
async fn a_check_that_wants_no_reuse_says_close_and_connects_every_time() {
    let mut fake = Fake::always(vec![ok()]).await;
    let mut question = http(H1);
    question.reuse_connection = false;
    let mut kept = None;
    for _ in 0..3 {
        let (answer, next) = ask_kept(fake.address, question.clone(), PATIENCE, kept).await;
        assert!(answer.outcome == Outcome::Ok && answer.fresh && next.is_none());
        kept = next;
    }
    assert_eq!(fake.connections(), 3);
    assert!(fake.seen().iter().all(|head| head.to_lowercase().contains("\r\nconnection: close\r\n")));
}
