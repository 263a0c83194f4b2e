//! The values that variables accept, and the errors for others.

use super::values::parse_number;
use super::*;

#[test]
fn numbers_may_have_suffixes() {
    assert_eq!(parse_number("12"), Some(12));
    assert_eq!(parse_number("3k"), Some(3072));
    assert_eq!(parse_number("1G"), Some(1 << 30));
    for bad in [
        "",
        "k",
        "-1",
        "+1",
        "1.5",
        "0x10",
        "99999999999999999999",
        "16777216T",
        "1kk",
    ] {
        assert_eq!(parse_number(bad), None, "{bad}");
    }
}

#[test]
fn every_variable_accepts_its_default_and_refuses_invalid_values() {
    for variable in VARIABLES {
        let mut config = Config::default();
        config.set(variable.name, variable.default).unwrap();
        for bad in ["", "perhaps", "-1", "99999999999999999999999"] {
            let error = config.set(variable.name, bad).unwrap_err();
            assert!(error.to_string().contains(variable.name));
            assert!(error.to_string().contains(variable.allowed));
        }
    }
}

#[test]
fn the_table_of_variables_lists_the_defaults() {
    let mut config = Config::default();
    for variable in VARIABLES {
        config.set(variable.name, variable.default).unwrap();
    }
    let default = Config::default();
    assert_eq!(format!("{config:?}"), format!("{default:?}"));
}

#[test]
fn an_error_names_the_variable_the_value_and_the_allowed_values() {
    let lookup = |name: &str| (name == "RKEY_SHARE").then(|| "everyone".to_owned());
    let error = Config::from_variables(lookup).unwrap_err();
    assert_eq!(
        error.to_string(),
        "RKEY_SHARE=\"everyone\" is not allowed: it must be user or all"
    );
}

#[test]
fn an_empty_variable_counts_as_unset() {
    for empty in ["", " "] {
        let lookup = |name: &str| (name != "RKEY_WIRE_KEY").then(|| empty.to_owned());
        let config = Config {
            timeout: 19,
            ..Config::default()
        };
        let config = config.with_variables(lookup).unwrap();
        assert_eq!((config.timeout, config.share), (19, Share::User));
        assert!(Config::from_variables(lookup).is_ok());
    }
}

#[test]
fn an_empty_wire_key_is_refused() {
    for bad in ["", " ", "relative", "/no/such/key"] {
        let lookup = |name: &str| (name == "RKEY_WIRE_KEY").then(|| bad.to_owned());
        let error = Config::from_variables(lookup).unwrap_err();
        assert!(
            error.to_string().contains("32 to 4096 random bytes"),
            "{error}"
        );
    }
    let none = |name: &str| (name == "RKEY_WIRE_KEY").then(|| "none".to_owned());
    assert_eq!(Config::from_variables(none).unwrap().wire.key, None);
}

#[test]
fn an_unknown_variable_is_named() {
    let error = Config::default().set("RKEY_COLOUR", "blue").unwrap_err();
    assert!(error.to_string().contains("RKEY_COLOUR"));
}

#[test]
fn the_wire_setting_accepts_only_unicast_addresses() {
    let set = |value: &str| {
        let mut config = Config::default();
        config
            .set("RKEY_WIRE", value)
            .map(|()| config.wire.addresses)
    };
    assert_eq!(set("off"), Ok(WireSetting::Off));
    assert_eq!(set("auto"), Ok(WireSetting::Auto));
    let some = ["10.1.2.3", "fd00::1"].map(|it| it.parse().unwrap());
    let written = "10.1.2.3, fd00::1,::ffff:10.1.2.3";
    assert_eq!(set(written), Ok(WireSetting::Addresses(some.to_vec())));
    for bad in [
        "0.0.0.0",
        "::",
        "239.1.2.3",
        "ff02::1",
        "10.1.2.3,",
        "eth0",
        "10.1.2.3:4791",
        "auto,10.1.2.3",
    ] {
        assert!(
            set(bad)
                .unwrap_err()
                .to_string()
                .contains("addresses of this host"),
            "{bad}"
        );
    }
    let many: Vec<String> = (0..65).map(|n| format!("10.0.0.{n}")).collect();
    assert!(set(&many.join(",")).is_err());
}
