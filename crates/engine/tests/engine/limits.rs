//! Limits of an engine, and objects that are busy until their users are destroyed.

use crate::support::*;
use rkey_engine::*;

#[test]
fn an_error_names_the_limit_that_was_reached() {
    let config = EngineConfig {
        max_qps: 1,
        max_cqs: 1,
        max_cq_depth: 10,
        ..Default::default()
    };
    let mut node = Node::with(1, config);
    let too_deep = node.engine.create_cq(11).unwrap_err();
    assert_eq!(
        too_deep.to_string(),
        "the depth of the completion queue is 11, but the limit is 10"
    );
    let cq = node.engine.create_cq(10).unwrap();
    assert!(node.engine.create_cq(10).is_err());
    let config = QpConfig::new(node.domain, &cq.id());
    assert_eq!(
        node.engine.create_qp(&config, 1 << 24),
        Err(EngineError::Number(1 << 24))
    );
    let qp = node.engine.create_qp(&config, 300).unwrap();
    let second = node.engine.create_qp(&config, 301).unwrap_err();
    assert!(second.to_string().contains("queue pairs"), "{second}");
    // The completion queue is busy until the queue pair is destroyed; so is the domain.
    let busy = node.engine.destroy_cq(cq.id());
    assert_eq!(
        busy,
        Err(EngineError::Busy {
            what: "completion queue",
            users: 2
        })
    );
    assert!(node.protection.close_domain(node.domain).is_err());
    node.engine.destroy_qp(qp).unwrap();
    assert_eq!(
        node.engine.destroy_qp(qp),
        Err(EngineError::NoSuch("queue pair"))
    );
    node.engine.destroy_cq(cq.id()).unwrap();
    node.protection.close_domain(node.domain).unwrap();
}
