//! Tests which of the matching rules are checked: groups, exceptions, blocks and replacements.

use slidegate::{
    Limiter, MemoryStore, Micros, Mode, Quota, Request, Rule, Rules, Source, Unmatched, store::Outcome,
};

fn limiter(rules: &str) -> Limiter {
    Limiter::new(MemoryStore::new(), Rules::from_yaml(rules).unwrap())
}

/// Returns the limits of a request.
async fn met(limiter: &Limiter, attributes: &[(&str, &str)]) -> Vec<String> {
    let decision = limiter.peek(Request::new(attributes.iter().copied())).await.unwrap();
    decision.limits().map(|limit| limit.rule().to_owned()).collect()
}

#[tokio::test]
async fn first_matching_rule_of_a_group_is_checked() {
    let limiter = limiter(
        "rules:
  - { name: off, group: g, mode: off, limit: 1, window: 1s }
  - { name: vip, group: g, match: { user: vip }, limit: 100, window: 1s }
  - { name: other-group, group: h, limit: 5, window: 1s }
  - { name: shadow, group: g, match: { user: new }, mode: shadow, limit: 1, window: 1s }
  - { name: user, group: g, key: [user], limit: 10, window: 1s }
  - { name: rest, group: g, limit: 1000, window: 1s }
  - { name: all, limit: 5000, window: 1s }",
    );
    assert_eq!(met(&limiter, &[("user", "vip")]).await, ["vip", "other-group", "all"]);
    assert_eq!(met(&limiter, &[("user", "new")]).await, ["other-group", "shadow", "all"]);
    assert_eq!(met(&limiter, &[("user", "bob")]).await, ["other-group", "user", "all"]);
    assert_eq!(met(&limiter, &[("ip", "x")]).await, ["other-group", "rest", "all"]);
}

#[tokio::test]
async fn only_rejects_requests_with_further_attributes() {
    let limiter = limiter(
        "rules:
  - { name: a, match: { api: /a }, key: [user], only: true, limit: 1, window: 1s }
  - { name: none, only: true, limit: 1, window: 1s }",
    );
    assert_eq!(met(&limiter, &[("user", "u"), ("api", "/a")]).await, ["a"]);
    assert!(met(&limiter, &[("user", "u"), ("api", "/a"), ("ip", "x")]).await.is_empty());
    assert!(met(&limiter, &[("user", "u")]).await.is_empty());
    assert_eq!(met(&limiter, &[]).await, ["none"]);
}

#[tokio::test]
async fn unlimited_rule_counts_nothing_and_ends_its_group() {
    let limiter = limiter(
        "rules:
  - { name: staff, group: g, match: { user: staff-* }, unlimited: true }
  - { name: user, group: g, key: [user], limit: 1, window: 1h }",
    );
    let staff = Request::new([("user", "staff-1")]).permits(1_000);
    for _ in 0..3 {
        let decision = limiter.acquire(staff.clone()).await.unwrap();
        assert_eq!(
            (decision.allowed(), decision.source(), decision.limits().count()),
            (true, Source::NoRule, 0)
        );
        assert!(decision.reservation().is_none());
    }
    assert!(limiter.acquire(Request::new([("user", "bob")])).await.unwrap().allowed());
    assert!(!limiter.acquire(Request::new([("user", "bob")])).await.unwrap().allowed());
    assert_eq!(limiter.store().stats().keys, 1);
}

#[tokio::test]
async fn blocked_rule_denies_without_the_store() {
    let limiter = limiter(
        "rules:
  - { name: total, limit: 1, window: 1h, count: attempts }
  - { name: banned, match: { ip: 6.6.6.6 }, blocked: true, code: 403 }",
    );
    let banned = Request::new([("ip", "6.6.6.6")]);
    for permits in [0, 1, 1_000] {
        let decision = limiter.acquire(banned.clone().permits(permits)).await.unwrap();
        assert_eq!(
            (decision.denied_by(), decision.code(), decision.source()),
            (Some("banned"), 403, Source::Blocked)
        );
        let [limit] = decision.limits().collect::<Vec<_>>()[..] else { panic!("one limit") };
        assert_eq!((limit.outcome(), limit.limit(), limit.remaining()), (Outcome::Impossible, 0, 0));
        assert_eq!(decision.retry_after(), Micros::from_secs(24 * 3600));
    }
    let other = Request::new([("ip", "1.1.1.1")]);
    let many = limiter.acquire_many(&[banned.clone(), other.clone(), banned]).await.unwrap();
    let allowed: Vec<bool> = many.into_iter().map(|decision| decision.unwrap().allowed()).collect();
    assert_eq!(allowed, [false, true, false], "blocked requests use no permits");
    assert!(!limiter.acquire(other).await.unwrap().allowed());
}

#[tokio::test]
async fn shadow_blocked_rule_does_not_deny() {
    let rules = [
        Rule::blocked("banned").unwrap().group("g").unwrap().mode(Mode::Shadow),
        Rule::new("rest", Quota::per_hour(1).unwrap()).unwrap().group("g").unwrap(),
    ];
    let limiter = Limiter::new(MemoryStore::new(), Rules::new(rules).unwrap());
    for _ in 0..3 {
        assert_eq!(limiter.acquire("x").await.unwrap().source(), Source::NoRule);
    }
}

/// A replaced rule still ends its group, and still replaces other rules.
#[tokio::test]
async fn replaced_rules_are_not_checked() {
    let limiter = limiter(
        "rules:
  - { name: usual, group: g, limit: 1, window: 1s, replaces: [least] }
  - { name: after, group: g, limit: 2, window: 1s }
  - { name: least, limit: 3, window: 1s }
  - { name: special, match: { user: vip }, limit: 4, window: 1s, replaces: [usual] }
  - { name: free, match: { user: free }, unlimited: true, replaces: [usual, least] }",
    );
    assert_eq!(met(&limiter, &[("user", "bob")]).await, ["usual"]);
    assert_eq!(met(&limiter, &[("user", "vip")]).await, ["special"]);
    assert!(met(&limiter, &[("user", "free")]).await.is_empty());
}

#[test]
fn contradictory_rules_are_rejected() {
    let rule = |name| Rule::new(name, Quota::per_second(1).unwrap()).unwrap();
    let message = |error: slidegate::Error| error.to_string();
    assert_eq!(message(rule("a").replaces(["a"]).unwrap_err()), "rule `a` cannot replace itself");
    let lost = Rules::new([rule("a").replaces(["b"]).unwrap()]).unwrap_err();
    assert_eq!(message(lost), "replaces names `b`, which is not a rule");
    assert!(rule("a").group("").is_err());
    assert!(Rule::unlimited("ad-hoc").is_err() && Rule::blocked("").is_err());
    let both = Rules::new([rule("a")]).unwrap().and([rule("b").replaces(["a"]).unwrap()]).unwrap();
    assert_eq!(both.iter().map(Rule::name).collect::<Vec<_>>(), ["a", "b"]);
    assert!(both.and([rule("a")]).is_err());
}

/// Statistics by rule find the rule by its index, without its name.
#[tokio::test]
async fn limits_report_rule_index_and_cost() {
    let limiter = limiter(
        "rules:
  - { name: off, mode: off, limit: 1, window: 1s }
  - { name: user, key: [user], limit: 10, window: 1s }
  - { name: all, mode: shadow, limit: 1, window: 1s }",
    );
    let decision = limiter.acquire(Request::new([("user", "u")]).permits(2)).await.unwrap();
    let found: Vec<_> = decision.limits().map(|limit| (limit.index(), limit.cost())).collect();
    assert_eq!(found, [(1, 2), (2, 2)]);
    for limit in decision.limits() {
        assert_eq!(decision.rules().iter().nth(limit.index()).unwrap().name(), limit.rule());
    }
    // An ad-hoc limit of a request belongs to no rule.
    let decision = limiter.acquire(Request::resource("r").limit(5)).await.unwrap();
    let limit = decision.limits().next().unwrap();
    assert_eq!((limit.rule(), limit.index(), limit.cost()), ("ad-hoc", u32::MAX as usize, 1));
    assert!(decision.rules().iter().nth(limit.index()).is_none());
}

#[tokio::test]
async fn unmatched_request_is_denied_by_policy() {
    let limiter = limiter(
        "unmatched: deny
rules:
  - { name: user, key: [user], limit: 1, window: 1h }
  - { name: watch, key: [ip], mode: shadow, limit: 1, window: 1h }
  - { name: staff, match: { team: staff }, unlimited: true }
  - { name: late, group: g, match: { a: b }, replaces: [early], unlimited: true }
  - { name: early, key: [c], limit: 1, window: 1h }",
    );
    let acquire = async |attributes: &[(&str, &str)]| {
        limiter.acquire(Request::new(attributes.iter().copied())).await.unwrap()
    };
    for matched in [&[("user", "u")][..], &[("ip", "1")], &[("team", "staff")], &[("a", "b"), ("c", "d")]] {
        let decision = acquire(matched).await;
        assert!(decision.allowed() && decision.unmatched().is_none(), "{matched:?}");
    }
    for unmatched in [&[][..], &[("usr", "u")], &[("team", "other")]] {
        let decision = acquire(unmatched).await;
        assert_eq!(
            (decision.allowed(), decision.unmatched()),
            (false, Some(Unmatched::Deny)),
            "{unmatched:?}"
        );
        assert_eq!((decision.code(), decision.denied_by(), decision.source()), (429, None, Source::NoRule));
        assert!(decision.retry_after() > Micros::ZERO && decision.reservation().is_none());
    }
    // A request without a rule denies all requests of `acquire_together`, and none is charged.
    let both = [Request::new([("user", "v")]), Request::new([("usr", "v")])];
    let decisions = limiter.acquire_together(&both).await.unwrap();
    assert_eq!([decisions[0].allowed(), decisions[1].allowed()], [true, false]);
    assert!(decisions[0].reservation().is_none());
    let many = limiter.acquire_many(&both).await.unwrap();
    assert!(many[0].as_ref().unwrap().allowed() && !many[1].as_ref().unwrap().allowed());
}

#[tokio::test]
async fn unmatched_request_is_allowed_by_default() {
    for (text, policy) in [("", Unmatched::Warn), ("unmatched: allow\n", Unmatched::Allow)] {
        let limiter = limiter(&format!("{text}rules: [{{ name: user, key: [user], limit: 1, window: 1h }}]"));
        let decision = limiter.acquire(Request::new([("usr", "u")])).await.unwrap();
        assert_eq!((decision.allowed(), decision.unmatched(), decision.code()), (true, Some(policy), 0));
    }
}
