//! Tests the reply of each command.

use super::raw_client::{RespServer, Value, Wire, bulk, simple};
use crate::server::Server;

#[test]
fn ad_hoc_limit() {
    let server = RespServer::open();
    let mut client = server.client();
    let numbers = client.call("SG.ACQUIRE user123 2 60000").numbers();
    assert_eq!(numbers[..4], [1, 2, 1, 0]);
    assert_eq!(numbers[4], 60_000);
    assert_eq!(client.call("sg.acquire user123 2 60000 1").numbers()[..4], [1, 2, 0, 0]);
    let denied = client.call("SG.ACQUIRE user123 2 60000").numbers();
    assert_eq!(denied[..3], [0, 2, 0]);
    assert!((59_000..=60_000).contains(&denied[3]), "{denied:?}");
    assert!((59_000..=60_000).contains(&denied[4]), "{denied:?}");
    assert_eq!(client.call("SG.ACQUIRE other 10 1000 7").numbers()[..4], [1, 10, 3, 0]);
    for (command, message) in [
        ("SG.ACQUIRE r 10", "ERR wrong number of arguments: SG.ACQUIRE resource limit window-ms [permits]"),
        ("SG.ACQUIRE r ten 1000", "ERR limit must be a whole number, not 'ten'"),
        ("SG.ACQUIRE r -1 1000", "ERR limit must be a whole number, not '-1'"),
        ("SG.ACQUIRE r 10 1", "ERR window must be between 1s and 1h, not 1ms"),
        ("SG.ACQUIRE r 100001 1000", "ERR limit must be between 1 and 100000, not 100001"),
        (
            "SG.ACQUIRE r 10 1000 11",
            "ERR 11 permits exceed the limit of rule `ad-hoc`, which is 10: waiting does not help",
        ),
        ("SG.ACQUIRE r 10 1000 reserve", "ERR reserve is not an option"),
        ("SG.ACQUIRE r 10 1000 ID a!", "ERR id must be 1 to 64 letters"),
        ("SG.ACQUIRE  10 1000", "ERR `resource` is empty"),
    ] {
        assert!(client.call(command).error().starts_with(message), "{:?}", client.call(command));
    }
}

#[test]
fn rules_decide_by_attributes() {
    let server = Server::demo();
    let mut client = Wire::connect(server.listener_address("redis"));
    let login = "SG.CHECK api /login ip 1.2.3.4 user alice";
    for left in [2, 1, 0] {
        let numbers = client.call(login).numbers();
        assert_eq!(numbers[..4], [1, 3, left, 0], "the limit with the fewest permits left");
    }
    let denied = client.call(login).numbers();
    assert_eq!(denied[..3], [0, 3, 0]);
    assert!(denied[3] > 0 && denied[3] <= 5_000, "{denied:?}");
    assert_eq!(client.call("SG.CHECK api /none").numbers(), [1, -1, -1, 0, 0], "no rule applies");
    assert_eq!(client.call("SG.CHECK PERMITS 60 api /v1/x api-key k").numbers()[..3], [1, 100, 40]);
    assert_eq!(client.call("SG.CHECK id 7 ID x").numbers(), [1, -1, -1, 0, 0], "attributes, not options");
    for (command, message) in [
        ("SG.CHECK", "ERR wrong number of arguments: SG.CHECK"),
        ("SG.CHECK api", "ERR wrong number of arguments: SG.CHECK"),
        ("SG.CHECK PERMITS x api /v1/x", "ERR PERMITS must be a whole number, not 'x'"),
        ("SG.CHECK PERMITS 101 api /v1/x api-key k", "ERR 101 permits exceed the limit of rule `api-quota`"),
        ("SG.CHECK api /a api /b", "ERR attribute `api` is given twice"),
        ("SG.CHECK a\r\nb c", "ERR an attribute name must be 1 to 64 letters"),
    ] {
        assert!(client.call(command).error().starts_with(message), "{:?}", client.call(command));
    }
}

#[test]
fn peek_charges_nothing_and_settle_refunds() {
    let server = RespServer::open();
    let mut client = server.client();
    for _ in 0..3 {
        assert_eq!(client.call("SG.PEEK ACQUIRE r 5 60000 5").numbers(), [1, 5, 5, 0, 0]);
    }
    assert_eq!(client.call("SG.PEEK CHECK api /x").numbers(), [1, -1, -1, 0, 0]);
    assert!(client.call("SG.PEEK r 5 60000").error().starts_with("ERR SG.PEEK takes ACQUIRE resource"));
    let Value::Array(answer) = client.call("SG.ACQUIRE r 5 60000 4 RESERVE ID one") else { panic!() };
    assert_eq!(Value::Array(answer[..5].to_vec()).numbers()[..3], [1, 5, 1]);
    let Value::Bulk(reservation) = &answer[5] else { panic!("{answer:?}") };
    let Value::Array(again) = client.call("SG.ACQUIRE r 5 60000 4 ID one RESERVE") else { panic!() };
    assert_eq!(again[2].number(), 1, "the same id is not charged again");
    assert_eq!(client.call(&format!("SG.SETTLE {reservation} 1")), simple("done"));
    assert_eq!(client.call(&format!("SG.SETTLE {reservation} 1")), simple("already"));
    assert_eq!(client.call("SG.PEEK ACQUIRE r 5 60000").numbers()[2], 4);
    let forged = [&reservation[..reservation.len() - 33], &reservation.replacen(".4.", ".5.", 1)];
    for (forged, command) in
        forged.into_iter().flat_map(|text| [(text, "SETTLE"), (text, "RELEASE"), (text, "EXTEND")])
    {
        let permits = if command == "SETTLE" { " 0" } else { "" };
        let answer = client.call(&format!("SG.{command} {forged}{permits}"));
        assert_eq!(answer.error(), "ERR invalid reservation: send it exactly as it was received");
    }
    assert_eq!(client.call("SG.PEEK ACQUIRE r 5 60000").numbers()[2], 4);
    let Value::Array(denied) = client.call("SG.ACQUIRE r 5 60000 5 RESERVE") else { panic!() };
    assert_eq!((denied[0].number(), &denied[5]), (0, &Value::NoBulk));
}

#[test]
fn held_permits_are_extended_and_released() {
    let server = RespServer::open();
    let rules = "rules: [{ name: at-once, key: [user], limit: 1, window: 30s, algorithm: concurrency }]";
    server.app.limiter.set_rules(slidegate::Rules::from_yaml(rules).unwrap());
    let mut client = server.client();
    let Value::Array(answer) = client.call("SG.CHECK RESERVE user bob") else { panic!() };
    let Value::Bulk(reservation) = &answer[5] else { panic!("{answer:?}") };
    assert_eq!(client.call("SG.CHECK user bob").numbers()[..3], [0, 1, 0]);
    assert_eq!(client.call(&format!("SG.EXTEND {reservation}")), simple("done"));
    assert_eq!(client.call(&format!("sg.release {reservation}")), simple("done"));
    assert_eq!(client.call(&format!("SG.EXTEND {reservation}")), simple("already"));
    assert_eq!(client.call("SG.CHECK user bob").numbers()[..3], [1, 1, 0]);
    assert_eq!(client.call("SG.RELEASE").error(), "ERR wrong number of arguments: SG.RELEASE reservation");
    assert_eq!(
        client.call("SG.EXTEND x").error(),
        "ERR invalid reservation: send it exactly as it was received"
    );
}

#[test]
fn commands_of_other_limiters() {
    let server = RespServer::open();
    let mut client = server.client();
    assert_eq!(client.call("CL.THROTTLE user123 15 30 60").numbers(), [0, 16, 15, -1, 2]);
    assert_eq!(client.call("cl.throttle user123 15 30 60 17").numbers()[..4], [1, 16, 15, -1]);
    assert_eq!(client.call("CL.THROTTLE one 0 1 60").numbers(), [0, 1, 0, -1, 60]);
    assert_eq!(client.call("CL.THROTTLE one 0 1 60").numbers(), [1, 1, 0, 60, 60]);
    assert_eq!(client.call("CL.THROTTLE one 0 1 60 0").numbers(), [0, 1, 0, -1, 60]);
    assert_eq!(client.call("THROTTLE crab 2 1 60").numbers(), [1, 2, 1, 60, 0]);
    assert_eq!(client.call("THROTTLE crab 2 1 60 2").numbers(), [0, 2, 1, 60, 60]);
    for (command, message) in [
        ("CL.THROTTLE k 15 30", "ERR wrong number of arguments: CL.THROTTLE key max_burst"),
        ("CL.THROTTLE k 15 30 60 -1", "ERR quantity must be a whole number, not '-1'"),
        ("CL.THROTTLE k 15 0 60", "ERR limit must be between 1 and 100000, not 0"),
        ("CL.THROTTLE k 15 30 86400", "ERR window must be between 1s and 1h, not 1d"),
        ("CL.THROTTLE k 100000 30 60", "ERR burst must be between 1 and 100000, not 100001"),
        ("THROTTLE k 0 30 60", "ERR burst must be between 1 and 100000, not 0"),
    ] {
        assert!(client.call(command).error().starts_with(message), "{:?}", client.call(command));
    }
}

#[test]
fn handshake_commands() {
    let server = RespServer::open();
    let mut client = server.client();
    for (command, answer) in [
        ("PING", simple("PONG")),
        ("ping hello", bulk("hello")),
        ("ECHO hello", bulk("hello")),
        ("SELECT 0", simple("OK")),
        ("CLIENT SETNAME me", simple("OK")),
        ("CLIENT GETNAME", bulk("me")),
        ("CLIENT SETINFO LIB-NAME x", simple("OK")),
        ("CLIENT ID", Value::Integer(1)),
        ("COMMAND", Value::Array(vec![])),
        ("COMMAND DOCS", Value::Array(vec![])),
        ("COMMAND COUNT", Value::Integer(22)),
        ("CONFIG GET save", Value::Array(vec![])),
        ("AUTH any", simple("OK")),
    ] {
        assert_eq!(client.call(command), answer, "{command}");
    }
    let Value::Bulk(info) = client.call("INFO server") else { panic!() };
    assert!(info.contains("\r\nloading:0\r\n") && info.contains("redis_version:"), "{info}");
    let Value::Bulk(list) = client.call("CLIENT LIST") else { panic!() };
    assert!(list.starts_with("id=1 addr=127.0.0.1:") && list.contains(" name=me "), "{list}");

    let Value::Array(hello) = client.call("HELLO 2 SETNAME you") else { panic!() };
    assert_eq!(hello[..2], [bulk("server"), bulk("slidegate")]);
    assert_eq!(hello[4..6], [bulk("proto"), Value::Integer(2)]);
    let Value::Map(hello) = client.call("HELLO 3") else { panic!() };
    assert_eq!(hello[4..6], [bulk("proto"), Value::Integer(3)]);
    assert_eq!(client.call("CONFIG GET save"), Value::Map(vec![]));
    assert_eq!(client.call("CLIENT GETNAME"), bulk("you"));
    let Value::Array(denied) = client.call("SG.ACQUIRE r 5 60000 0 RESERVE") else { panic!() };
    assert_eq!(denied[5], Value::Null);
    assert_eq!(client.call("RESET"), simple("RESET"));
    assert_eq!(client.call("CLIENT GETNAME"), Value::NoBulk);
    assert_eq!(client.call("QUIT"), simple("OK"));
    assert_eq!(client.read(), None);
}

#[test]
fn invalid_commands_are_rejected() {
    let server = RespServer::open();
    let mut client = server.client();
    let long = "x".repeat(1_000);
    for (command, message) in [
        ("GET k", "ERR unknown command 'GET'"),
        ("F\r\nOO\u{7}é", "ERR unknown command 'F??OO???'"),
        (long.as_str(), "ERR unknown command 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'"),
        ("ECHO", "ERR wrong number of arguments for 'echo' command"),
        ("SELECT 1", "ERR DB index is out of range: only 0 exists"),
        ("CLIENT KILL x", "ERR unknown subcommand or wrong number of arguments for 'KILL'"),
        ("CONFIG SET a b", "ERR only CONFIG GET is supported: settings are in the configuration file"),
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("HELLO 3 WHO", "ERR Syntax error in HELLO option 'WHO'"),
        ("SG.SETTLE x 1", "ERR invalid reservation: send it exactly as it was received"),
    ] {
        assert_eq!(client.call(command).error(), message);
    }
    assert_eq!(client.call("PING"), simple("PONG"));
}

#[test]
fn commands_need_the_configured_token() {
    let server = RespServer::locked("secret");
    let mut client = server.client();
    for command in ["PING", "SG.ACQUIRE r 1 1000", "SG.PEEK ACQUIRE r 1 1000", "GET x", "INFO"] {
        assert_eq!(client.call(command).error(), "NOAUTH Authentication required.");
    }
    assert!(client.call("HELLO 3").error().starts_with("NOAUTH HELLO must be called"));
    assert!(client.call("AUTH wrong").error().starts_with("WRONGPASS "));
    assert!(client.call("HELLO 3 AUTH default wrong").error().starts_with("WRONGPASS "));
    assert_eq!(client.call("AUTH secret"), simple("OK"));
    assert_eq!(client.call("SG.ACQUIRE r 1 1000").numbers()[0], 1);
    assert_eq!(client.call("RESET"), simple("RESET"));
    assert_eq!(client.call("PING").error(), "NOAUTH Authentication required.");
    assert!(matches!(client.call("HELLO 3 AUTH default secret SETNAME me"), Value::Map(_)));
    assert_eq!(client.call("PING"), simple("PONG"));
    assert_eq!(server.client().call("AUTH default secret"), simple("OK"));
    // Clients without a token have smaller limits.
    let mut unauthenticated = server.client();
    unauthenticated.send(b"*11\r\n");
    assert_eq!(
        unauthenticated.rest()[0].error(),
        "ERR Protocol error: invalid multibulk length: too many arguments"
    );
    let mut unauthenticated = server.client();
    unauthenticated.send(b"*2\r\n$4\r\nAUTH\r\n$16385\r\n");
    assert_eq!(unauthenticated.rest()[0].error(), "ERR Protocol error: invalid bulk length");
}

#[test]
fn inline_commands() {
    let server = RespServer::open();
    let mut client = server.client();
    client.send(b"PING\r\n\r\n  ping   hello \nSG.ACQUIRE r 1 60000\r\nSG.ACQUIRE r 1 60000\r\nPI");
    client.send(b"NG\r\n");
    assert_eq!(client.read(), Some(simple("PONG")));
    assert_eq!(client.read(), Some(bulk("hello")));
    assert_eq!(client.read().unwrap().numbers()[0], 1);
    assert_eq!(client.read().unwrap().numbers()[0], 0);
    assert_eq!(client.read(), Some(simple("PONG")));
    client.send(b"*0\r\n*-1\r\nPOST / HTTP/1.1\r\nHost: x\r\n\r\nSG.ACQUIRE r 1 60000\r\n");
    let rest = client.rest();
    assert_eq!(rest.len(), 1, "commands from a browser are not executed");
    assert!(rest[0].error().starts_with("ERR Protocol error: received an HTTP request"));
}
