//! What only one language has: a fork, statements that release at their end, tests in the language's own manner.

use crate::language::Language;
use crate::stage::{Play, Stage, holders};
use serde_json::json;

/// A child of a fork is another process: it neither releases nor renews its parent's lock.
#[test]
fn a_fork_of_python_has_lost_the_lock_of_its_parent() {
    Language::Python.play("own::a_fork_of_python_has_lost_the_lock_of_its_parent", |play: Play| {
        let mut stage = play.stage();
        let Stage { agent, conn, .. } = &mut stage;
        agent.open("a", json!({"keys": ["k"], "lease": 1.0}));
        let fence = agent.acquired("a");
        let owner = agent.owner("a");
        assert_eq!(agent.ask(json!({"do": "fork", "lock": "a"}))["lost_in_child"], true);
        assert_eq!((conn.lock_info("k").unwrap().fence, holders(conn, "k")), (fence, vec![owner]));
        assert!(!agent.is_lost("a"));
        agent.released("a");
    });
}
