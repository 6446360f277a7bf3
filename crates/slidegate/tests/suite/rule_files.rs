//! Tests that every mistake in a rules file is reported with its line and the fix: one broken file per mistake.

use slidegate::section::{Section, Shown};
use slidegate::{Rules, rules::RuleFile};

/// Asserts the exact messages for a file.
const BROKEN: &[(&str, &str)] = &[
    (
        "",
        "1:1: the file must be a mapping, not nothing",
    ),
    (
        "[]",
        "1:1: the file must be a mapping, not a list",
    ),
    (
        "rules:",
        "1:1: the file needs `rules`",
    ),
    (
        "rules: 5",
        "1:8: rules must be a list, not 5",
    ),
    (
        "rules: [5]",
        "1:9: a rule must be a mapping, not 5",
    ),
    (
        "rules: [{}]",
        "1:9: a rule needs `limit`
1:9: a rule needs `name`
1:9: a rule needs `window`",
    ),
    (
        "rules:
  - { name: a, limit: 0, window: 1s }",
        "2:23: limit must be between 1 and 1000000000000, not 0",
    ),
    (
        "rules:
  - { name: a, limit: -1, window: 1s }",
        "2:23: limit must be a whole number, not -1",
    ),
    (
        "rules:
  - { name: a, limit: 1.5, window: 1s }",
        "2:23: limit must be a whole number, not 1.5",
    ),
    (
        "rules:
  - { name: a, limit: .nan, window: 1s }",
        "2:23: limit must be a whole number, not NaN",
    ),
    (
        "rules:
  - { name: a, limit: ten, window: 1s }",
        r#"2:23: limit must be a whole number, not "ten""#,
    ),
    (
        "rules:
  - { name: a, limit: 1000000000001, window: 1s }",
        "2:23: limit must be between 1 and 1000000000000, not 1000000000001",
    ),
    (
        "rules:
  - { name: a, limit: 99999999999999999999999, window: 1s }",
        "2:23: limit must be a whole number, not 1e23",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 0s }",
        "2:34: window must be between 1ms and 366d, not 0s",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 100y }",
        "2:34: window must be between 1ms and 366d, not 36525d",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 5 }",
        "2:34: window must be a length of time such as 250ms, 5s or 1h, not 5",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: fast }",
        r#"2:34: window must be a length of time such as 250ms, 5s or 1h, not "fast""#,
    ),
    (
        "rules:
  - { name: a, limit: 5, window: -1s }",
        r#"2:34: window must be a length of time such as 250ms, 5s or 1h, not "-1s""#,
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 10us }",
        "2:34: window must be between 1ms and 366d, not 10us",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, algorithm: leaky }",
        r#"2:49: algorithm must be one of sliding-window, fixed-window, sliding-counter, time-slice, token-bucket, concurrency, not "leaky""#,
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, burst: 5 }",
        "2:45: `burst` needs algorithm: token-bucket",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, encoding: zip }",
        r#"2:48: encoding must be one of zset, packed, not "zip""#,
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, algorithm: fixed-window, encoding: packed }",
        "2:73: `encoding: packed` needs algorithm: sliding-window",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, slices: 5 }",
        "2:46: `slices` needs algorithm: time-slice",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, algorithm: time-slice, slices: 1 }",
        "2:69: slices must be between 2 and 10000, not 1",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, algorithm: time-slice, slices: 100000 }",
        "2:69: slices must be between 2 and 10000, not 100000",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, algorithm: token-bucket, burst: 0 }",
        "2:70: burst must be between 1 and 1000000000000, not 0",
    ),
    (
        "rules:
  - { name: a, limit: 999983, window: 30d, algorithm: token-bucket, burst: 1000000000 }",
        "2:76: a burst of 1000000000 at 999983 per 30d cannot be counted exactly: use a smaller burst, or a limit that divides the window",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, count: all }",
        r#"2:45: count must be one of admitted, attempts, not "all""#,
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, mode: on }",
        r#"2:44: mode must be one of enforce, shadow, off, not "on""#,
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, code: 0 }",
        "2:44: code must be between 1 and 4294967295, not 0",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, code: 4294967296 }",
        "2:44: code must be between 1 and 4294967295, not 4294967296",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, code: nope }",
        r#"2:44: code must be a whole number, not "nope""#,
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: ip }",
        r#"2:43: key must be a list, not "ip""#,
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: [ip, ip] }",
        "2:43: key names `ip` twice",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: [''] }",
        "2:43: an attribute name must be 1 to 64 letters, digits or any of `_-.`",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: ['a b'] }",
        "2:43: an attribute name must be 1 to 64 letters, digits or any of `_-.`",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: [a,b,c,d,e,f,g,h,i] }",
        "2:43: key may name at most 8 attributes, not 9",
    ),
    (
        "rules:
  - { name: a, key: [user], tag: tenant, limit: 1, window: 1s }",
        "2:34: tag must be one of key [user], not \"tenant\"",
    ),
    (
        "rules:
  - { name: a, tag: tenant, limit: 1, window: 1s }",
        "2:21: tag must be one of key [], not \"tenant\"",
    ),
    (
        "rules:
  - { name: a, key: [user], tag: [user], limit: 1, window: 1s }",
        "2:34: tag must be text, not a list",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: [5] }",
        r#"2:44: an attribute name must be text, not 5: write "5" in quotes"#,
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, match: /login }",
        r#"2:45: match must be a mapping, not "/login""#,
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, match: { api: 5 } }",
        r#"2:52: a pattern must be text, not 5: write "5" in quotes"#,
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, match: { api: [] } }",
        "2:52: match `api` is an empty list, which matches nothing",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, match: { api: { a: b } } }",
        "2:52: a pattern must be text, not a mapping",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, match: { 'a b': x } }",
        "2:47: an attribute name must be 1 to 64 letters, digits or any of `_-.`",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, match: { api: a, api: b } }",
        "2:55: `api` is given twice in match",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, on-error: ask }",
        "2:48: on-error must be one of local, open, closed, not \"ask\"",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, lease: 5 }",
        "2:45: lease must be a mapping, not 5",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, lease: {} }",
        "2:45: lease needs `permits`\n2:45: lease needs `ttl`",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, lease: { permits: 1, ttl: 100ms } }",
        "2:56: lease.permits must be between 2 and 10000, not 1",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, lease: { permits: 10, ttl: 300ms } }",
        "2:45: the window 1s must be a multiple of lease.ttl, 2 to 10000 times as long, but lease.ttl is 300ms",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, count: attempts, lease: { permits: 10, ttl: 100ms } }",
        "2:62: `lease` cannot be combined with count: attempts",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, encoding: packed, lease: { permits: 10, ttl: 100ms } }",
        "2:63: `lease` cannot be combined with encoding: packed",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, algorithm: token-bucket, lease: { permits: 10, ttl: 100ms } }",
        "2:70: `lease` needs algorithm: sliding-window or time-slice",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, algorithm: time-slice, slices: 5, lease: { permits: 10, ttl: 100ms } }",
        "2:79: lease.ttl must be the length of a slice, 200ms, not 100ms",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, warm-up: 20% }",
        r#"2:47: warm-up must be a mapping, not "20%""#,
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, warm-up: {} }",
        "2:47: warm-up needs `from`\n2:47: warm-up needs `over`",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, warm-up: { from: 0.2, over: 30s } }",
        "2:55: warm-up.from must be a percentage such as 80% or 12.5%, not 0.2",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, warm-up: { from: 12.5%, over: 30s } }",
        "2:55: warm-up.from must be a whole number of percent",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, warm-up: { from: 100%, over: 30s } }",
        "2:55: warm-up.from must be between 1% and 99%, not 100%",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, warm-up: { from: 20%, over: 2d } }",
        "2:66: warm-up.over must be between 1ms and 1d, not 2d",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1m, warm-up: { from: 20%, over: 30s, idle: 10s } }",
        "2:47: warm-up.idle must be at least 1m, for which an admission counts, not 10s",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, warm-up: { from: 20%, over: 30s, shape: curve } }",
        r#"2:78: warm-up.shape must be one of linear, steps, not "curve""#,
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, algorithm: token-bucket, warm-up: { from: 20%, over: 30s } }",
        "2:72: `warm-up` cannot be combined with algorithm: token-bucket: use `burst` instead",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, warm-up: { from: 20%, over: 30s }, lease: { permits: 10, ttl: 100ms } }",
        "2:80: `lease` cannot be combined with `warm-up`",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, algorithm: concurrency, count: attempts }",
        "2:69: `count: attempts` cannot be combined with algorithm: concurrency",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, algorithm: concurrency, encoding: packed }",
        "2:72: `encoding: packed` needs algorithm: sliding-window",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, algorithm: concurrency, lease: { permits: 10, ttl: 100ms } }",
        "2:69: `lease` needs algorithm: sliding-window or time-slice",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, windw: 1s }",
        "2:38: unknown field `windw` in a rule: did you mean `window`?",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, timeout: 1s }",
        "2:38: unknown field `timeout` in a rule: the fields are `name`, `match`, `key`, `only`, `group`, `replaces`, `unlimited`, `blocked`, `tag`, `limit`, `window`, `algorithm`, `burst`, `slices`, `count`, `code`, `mode`, `shadow-of`, `encoding`, `on-error`, `lease`, `warm-up`, `adaptive`, `overrides`",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, shadow-fo: b, warmup: {}, algoritm: x, kye: [ip] }",
        "2:38: unknown field `shadow-fo` in a rule: did you mean `shadow-of`?
2:52: unknown field `warmup` in a rule: did you mean `warm-up`?
2:64: unknown field `algoritm` in a rule: did you mean `algorithm`?
2:77: unknown field `kye` in a rule: did you mean `key`?",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, limit: 6 }",
        "2:38: `limit` is given twice in a rule",
    ),
    (
        "rules:
  - { name: '', limit: 5, window: 1s }",
        "2:13: a rule name must be 1 to 64 letters, digits or any of `._/-`, and start with a letter or digit",
    ),
    (
        "rules:
  - { name: 'a b', limit: 5, window: 1s }",
        "2:13: a rule name must be 1 to 64 letters, digits or any of `._/-`, and start with a letter or digit",
    ),
    (
        "rules:
  - { name: 5, limit: 5, window: 1s }",
        r#"2:13: name must be text, not 5: write "5" in quotes"#,
    ),
    (
        "rules:
  - { name: ad-hoc, limit: 5, window: 1s }",
        "2:13: the rule name `ad-hoc` is reserved for ad-hoc limits",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s }
  - { name: b, limit: 5, window: 1s }
  - { name: a, limit: 5, window: 1s }",
        "4:13: another rule is already named `a`",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: [ip], overrides: 5 }",
        "2:60: overrides must be a list, not 5",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: [ip], overrides: [{ limit: 3 }] }",
        "2:61: an override needs `key`",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: [ip], overrides: [{ key: { ip: x } }] }",
        "2:61: an override needs `limit` or `burst`",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: [ip], overrides: [{ key: { user: x }, limit: 3 }] }",
        "2:68: the key of an override needs `ip`
2:70: unknown field `user` in the key of an override: the fields are `ip`",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: [ip], overrides: [{ key: { ip: x }, limit: 0 }] }",
        "2:86: limit must be between 1 and 1000000000000, not 0",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: [ip], overrides: [{ key: { ip: x }, burst: 3 }] }",
        "2:61: `burst` needs algorithm: token-bucket",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, key: [ip], overrides: [{ key: { ip: x }, limit: 3 }, { key: { ip: x }, limit: 4 }] }",
        "2:91: another override has the same key",
    ),
    (
        "ad-hoc: { limit: { min: 10, default: 5 } }
rules: []",
        "1:9: limit needs 1 <= min <= default <= max <= 1000000000000, not 10, 5, 100000",
    ),
    (
        "ad-hoc: { window: { max: 10y } }
rules: []",
        "1:9: window needs 1ms <= min <= default <= max <= 366d, not 1s, 1m, 3652d 12h",
    ),
    (
        "ad-hoc: { windows: 5 }
rules: []",
        "1:11: unknown field `windows` in ad-hoc: did you mean `window`?",
    ),
    (
        "rules: [{ name: a
limit: 5",
        "1:9: unclosed bracket '{'",
    ),
    (
        "a: b: c",
        "1:5: mapping values are not allowed in this context",
    ),
    (
        "rules:
\t- name: a",
        "2:2: tabs disallowed within this context (block indentation)",
    ),
    (
        "rulez: []",
        "1:1: the file needs `rules`
1:1: unknown field `rulez` in the file: did you mean `rules`?",
    ),
    (
        "rules:
  - name: first
    limit: 0
    window: soon
    mode: on
  - name: second
    limt: 5
    window: 1s
  - name: first
    limit: 5
    window: 1s
    key: ip
",
        r#"3:12: limit must be between 1 and 1000000000000, not 0
4:13: window must be a length of time such as 250ms, 5s or 1h, not "soon"
5:11: mode must be one of enforce, shadow, off, not "on"
6:5: rule `second` needs `limit`
7:5: unknown field `limt` in a rule: did you mean `limit`?
9:11: another rule is already named `first`
12:10: key must be a list, not "ip""#,
    ),
    (
        "a: &a [x,x,x,x,x,x,x,x,x]
b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]
c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]
d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]
e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]
f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]
rules: [*f,*f,*f,*f,*f,*f]",
        "6:14: the file is too large, too deeply nested, or has too many aliases",
    ),
    (
        "rules: []
---
rules: []",
        "3:1: a file must have one YAML document: remove the `---`",
    ),
    (
        "rules:
  - { name: a b, limit: 0, window: 1s, algorithm: time-slice, slices: 1, key: [ip, ip], overrides: [{ key: { ip: x }, limt: 5 }] }",
        "2:13: a rule name must be 1 to 64 letters, digits or any of `._/-`, and start with a letter or digit
2:25: limit must be between 1 and 1000000000000, not 0
2:71: slices must be between 2 and 10000, not 1
2:79: key names `ip` twice
2:101: an override needs `limit` or `burst`
2:119: unknown field `limt` in an override: did you mean `limit`?",
    ),
    (
        "rules: [{ name: a, limit: 5, window: 1s, overrides: [{ key: { ip: x }, limit: 3 }] }]",
        "1:63: unknown field `ip` in the key of an override: no fields are allowed",
    ),
    (
        "rules:
  - { name: a, unlimited: true, limit: 5, window: 1s, overrides: [], code: 5 }",
        "2:40: `limit` cannot be combined with `unlimited: true`
2:51: `window` cannot be combined with `unlimited: true`
2:66: `overrides` cannot be combined with `unlimited: true`
2:76: `code` cannot be combined with `unlimited: true`",
    ),
    (
        "rules:
  - { name: a, blocked: true, lease: 5, mode: shadow, code: 5 }",
        "2:38: `lease` cannot be combined with `blocked: true`
2:38: lease must be a mapping, not 5
2:47: a blocked rule cannot be a shadow: mode must be enforce or off",
    ),
    (
        r#"rules: [{ name: a, limit: 5, window: 1s, match: { "\n": [] } }]"#,
        r"1:51: an attribute name must be 1 to 64 letters, digits or any of `_-.`
1:57: match `\n` is an empty list, which matches nothing",
    ),
    (
        "rules: [{ name: a, unlimited: true, blocked: true }]",
        "1:9: a rule is `unlimited` or `blocked`, not both",
    ),
    (
        "rules: [{ name: a, unlimited: yes }, { name: b, blocked: 5 }, { name: c, unlimited: false }]",
        r#"1:31: unlimited must be true or false, not "yes"
1:58: blocked must be true or false, not 5
1:63: rule `c` needs `limit`
1:63: rule `c` needs `window`"#,
    ),
    (
        "rules: [{ name: a, limit: 5, window: 1s, only: 1, group: two words, replaces: b }]",
        r#"1:48: only must be true or false, not 1
1:58: a group name must be 1 to 64 letters, digits or any of `._/-`, and start with a letter or digit
1:79: replaces must be a list, not "b""#,
    ),
    (
        "rules: [{ name: a, limit: 5, window: 1s, replaces: [a, b, 5] }]",
        "1:53: rule `a` cannot replace itself\n1:56: replaces names `b`, which is not a rule\n1:59: a rule name must be text, not 5: write \"5\" in quotes",
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, replaces: [b, c, 5] }
  - { name: b, limit: 0, window: 1s }",
        r#"2:52: replaces names `c`, which is not a rule
2:55: a rule name must be text, not 5: write "5" in quotes
3:23: limit must be between 1 and 1000000000000, not 0"#,
    ),
    (
        "rules:
  - { name: a, limit: 5, window: 1s, shadow-of: b }
  - { name: c, limit: 5, window: 1s, shadow-of: a, mode: enforce }
  - { name: d, limit: 5, window: 1s, shadow-of: d }
  - { name: e, unlimited: true, shadow-of: a }
  - { name: f, limit: 5, window: 1s, shadow-of: [a] }
  - { name: g, limit: 5, window: 1s, shadow-of: a, mode: maybe }",
        r#"2:49: shadow-of names `b`, which is not a rule
3:49: `shadow-of` needs mode: shadow or mode: off
4:49: rule `d` cannot be a shadow of itself
5:44: `shadow-of` cannot be combined with `unlimited: true`
6:49: shadow-of must be text, not a list
7:58: mode must be one of enforce, shadow, off, not "maybe""#,
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: true }",
        "2:48: adaptive must be a mapping, not true",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { cpus: off } }",
        "2:50: unknown field `cpus` in adaptive: did you mean `cpu`?",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { cpu: off, memory: off, latency: off } }",
        "2:48: adaptive needs at least one of cpu, memory and latency",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { cpu: { low: 90% } } }",
        "2:55: adaptive.cpu: low must be less than high",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { cpu: { high: 101% }, memory: { low: 100ms, above: 0.7 } } }",
        r#"2:63: adaptive.cpu.high must be at most 100%
2:86: adaptive.memory.low must be a percentage such as 80% or 12.5%, not "100ms"
2:100: adaptive.memory.above must be a percentage such as 80% or 12.5%, not 0.7"#,
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { memory: { below: 90% } } }",
        "2:58: adaptive.memory: below must be between 100% and 1000%, and above between 1% and 100%",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { latency: { low: 10% } } }",
        r#"2:66: adaptive.latency.low must be a length of time such as 250ms, 5s or 1h, not "10%""#,
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { latency: { tolerance: 100% } } }",
        "2:59: adaptive.latency.tolerance must be between 110% and 10000%, not 100%",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { latency: { tolerance: 200%, low: 1ms } } }",
        "2:78: unknown field `low` in adaptive.latency with `tolerance`: the fields are `tolerance`",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { min: 0%, max: 90% } }",
        "2:55: adaptive.min must be between 1% and 100%, not 0%\n2:64: adaptive.max must be between 100% and 1000%, not 90%",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { max: 90% } }",
        "2:55: adaptive.max must be between 100% and 1000%, not 90%",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { sensitivity: 10.5 } }",
        "2:63: adaptive.sensitivity must be between 0.01 and 10, not 10.5",
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { sensitivity: high } }",
        r#"2:63: adaptive.sensitivity must be a number such as 1.5, not "high""#,
    ),
    (
        "rules:\n  - { name: a, limit: 1, window: 1s, adaptive: { smooth: 1ms } }",
        "2:58: adaptive.smooth must be between 100ms and 1h, not 1ms",
    ),
    (
        "rules:\n  - { name: a, limit: 10, window: 1s, adaptive: {}, lease: { permits: 10, ttl: 100ms } }",
        "2:60: `lease` cannot be combined with `adaptive`",
    ),
    (
        "rules:\n  - { name: a, limit: 1000, window: 1d, algorithm: token-bucket, burst: 100000, adaptive: {} }",
        "2:91: a burst of up to 120000 per 1d cannot be counted exactly at every rate that `adaptive` may choose: use a smaller burst or a shorter window",
    ),
    (
        "rules:\n  - { name: a, unlimited: true, adaptive: {} }",
        "2:43: `adaptive` cannot be combined with `unlimited: true`",
    ),
];

#[test]
fn every_mistake_has_its_exact_message() {
    for (file, message) in BROKEN {
        let error = Rules::from_yaml(file).expect_err(file);
        assert!(error.is_invalid());
        assert_eq!(error.to_string(), *message, "{file}");
    }
    eprintln!("{} broken files, each with its exact message", BROKEN.len());
}

#[test]
fn five_megabyte_file_is_rejected() {
    let error = Rules::from_yaml(&"#".repeat(5 << 20)).unwrap_err();
    assert_eq!(error.to_string(), "1:1: the file has 5242880 bytes; the maximum is 4194304");
}

#[test]
fn file_with_every_field_is_accepted() {
    let rules = Rules::from_yaml(include_str!("full.yaml")).unwrap();
    assert_eq!(rules.iter().count(), 15);
    assert_eq!(Rules::from_yaml("rules: []").unwrap().iter().count(), 0);
}

/// The output of `GET /v1/rules` is a file with the same rules, because JSON is YAML. The same holds with defaults left out.
#[test]
fn printed_rules_parse_to_the_same_rules() {
    let rules = Rules::from_yaml(include_str!("full.yaml")).unwrap();
    let section = RuleFile::describe();
    let files = [
        rules.iter().map(|rule| RuleFile::show(&rule.into())).collect(),
        rules.iter().map(|rule| section.without_defaults(RuleFile::show(&rule.into()))).collect(),
    ];
    let shown = files.map(|rules: Vec<Shown>| serde_json::json!({ "rules": rules }).to_string());
    for shown in &shown {
        assert_eq!(Rules::from_yaml(shown).unwrap(), rules);
    }
    assert!(shown[1].len() * 3 < shown[0].len() * 2, "{}", shown[1]);
}
