//! Equal types have equal shapes, different types have different ones, and no message exceeds the limits.

use super::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Encodes a value and decodes it again as a `U`. Returns whether the shapes agree, and the result.
fn pass<T: Serialize + ?Sized, U: DeserializeOwned>(value: &T) -> (bool, Result<U, String>) {
    let bytes = postcard::to_stdvec(value).unwrap();
    let sent = Shape::of(value, bytes.len()).unwrap();
    let (value, expected) = Shape::decode::<U>(&bytes);
    (sent.hash() == expected.hash(), value)
}

fn title<T: Serialize + ?Sized>(value: &T) -> String {
    Shape::of(value, 1000).unwrap().title().to_owned()
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
enum Note {
    Nothing,
    Number(u32),
    Pair(u8, String),
    Fields {
        #[serde(alias = "another_name")]
        map: BTreeMap<u16, Vec<char>>,
        maybe: Option<Box<Note>>,
    },
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Unit;

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Metres(f64);

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Tuple(i64, (), i128);

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Everything {
    notes: Vec<Note>,
    unit: Unit,
    length: Metres,
    tuple: Tuple,
    array: [u16; 3],
    time: Duration,
    path: PathBuf,
    name: OsString,
    addresses: (IpAddr, SocketAddr),
    result: Result<u8, String>,
    #[serde(skip)]
    skipped: u32,
    flag: bool,
    float: f32,
}

fn everything() -> Everything {
    let fields = Note::Fields {
        map: [(7, vec!['x', 'ß']), (8, Vec::new())].into(),
        maybe: Some(Box::new(Note::Nothing)),
    };
    Everything {
        notes: vec![
            Note::Nothing,
            Note::Number(77),
            Note::Pair(1, "two".into()),
            fields,
        ],
        unit: Unit,
        length: Metres(1.5),
        tuple: Tuple(-1, (), i128::MIN),
        array: [1, 2, 3],
        time: Duration::from_millis(1234),
        path: "/a/path".into(),
        name: "a name".into(),
        addresses: ([127, 0, 0, 1].into(), "[::1]:80".parse().unwrap()),
        result: Err("none".into()),
        skipped: 0,
        flag: true,
        float: 0.25,
    }
}

#[test]
fn sent_and_received_values_have_the_same_shape() {
    let (same, value) = pass::<_, Everything>(&everything());
    assert_eq!((same, value), (true, Ok(everything())));
    assert_eq!(pass::<_, String>("text"), (true, Ok("text".into())));
    assert_eq!(pass::<_, Vec<u8>>(&[1u8, 2][..]), (true, Ok(vec![1, 2])));
    assert_eq!(pass::<_, Option<u8>>(&None::<u8>), (true, Ok(None)));
    assert_eq!(pass::<_, Vec<()>>(&[(), ()][..]), (true, Ok(vec![(); 2])));
    assert_eq!(pass::<_, usize>(&7u64), (true, Ok(7)));
    assert!(pass::<_, Box<Note>>(&Note::Number(1)).0);
}

#[test]
fn different_types_have_different_shapes() {
    // All of these decode without an error.
    assert!(matches!(pass::<_, u8>(&1u32), (false, Ok(1))));
    assert!(matches!(
        pass::<_, (u8, u8)>(&(1u32, 2u32)),
        (false, Ok((1, 2)))
    ));
    assert!(matches!(pass::<_, [u8; 2]>(&(1u8, 2u16)), (false, Ok(_))));
    assert!(matches!(
        pass::<_, Vec<u16>>(&vec![1u32, 2]),
        (false, Ok(_))
    ));
    assert!(matches!(pass::<_, String>(&vec![65u8, 66]), (false, Ok(_))));
    assert!(matches!(pass::<_, bool>(&1u8), (false, Ok(true))));
    assert!(matches!(pass::<_, Point>(&(1u8, 2u8)), (false, Ok(_))));
    assert!(matches!(pass::<_, Option<u8>>(&[1u8][..]), (false, Ok(_))));
    assert!(matches!(pass::<_, Note>(&0u32), (false, Ok(Note::Nothing))));
    assert!(matches!(
        pass::<_, ((u8, u8), u8)>(&(1u8, (2u8, 3u8))),
        (false, Ok(_))
    ));
    let lists = [vec![1u8], vec![2, 3]];
    assert!(matches!(pass::<_, [Vec<u16>; 2]>(&lists), (false, Ok(_))));
}

/// Written under its own name, and read under the name of its unchecked form: serde's usual way to validate input.
#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
#[serde(try_from = "Unchecked")]
struct Point {
    x: u8,
    y: u8,
}

#[derive(Deserialize)]
struct Unchecked {
    x: u8,
    y: u8,
}

impl TryFrom<Unchecked> for Point {
    type Error = &'static str;

    fn try_from(Unchecked { x, y }: Unchecked) -> Result<Self, Self::Error> {
        match x <= y {
            true => Ok(Self { x, y }),
            false => Err("x is greater than y"),
        }
    }
}

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
#[serde(rename(serialize = "Outgoing", deserialize = "Incoming"))]
enum Renamed {
    Number(u32),
}

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
#[serde(from = "f64")]
struct Feet(f64);

impl From<f64> for Feet {
    fn from(feet: f64) -> Self {
        Self(feet)
    }
}

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
#[serde(from = "(i64, ())")]
struct Place(i64, ());

impl From<(i64, ())> for Place {
    fn from((at, ()): (i64, ())) -> Self {
        Self(at, ())
    }
}

#[test]
fn types_that_serde_reads_under_another_name_are_received() {
    fn returns<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: T) {
        assert_eq!(pass::<T, T>(&value), (true, Ok(value)));
    }
    let point = Point { x: 1, y: 2 };
    returns(point.clone());
    returns(vec![(Some(point), Renamed::Number(7))]);
    returns(Feet(1.5));
    returns(Place(-1, ()));
    let (_, refused) = pass::<_, Point>(&Tiny { a: 2, b: 1 });
    assert_eq!(refused, Err("Serde Deserialization Error".into()));
}

#[derive(Serialize)]
struct Tiny {
    a: u8,
    b: u8,
}

/// serde's data model does not distinguish these, nor does JSON.
#[test]
fn wrappers_and_names_are_not_part_of_the_shape() {
    assert_eq!(pass::<_, Metres>(&1.5f64), (true, Ok(Metres(1.5))));
    assert_eq!(pass::<_, f64>(&Metres(1.5)), (true, Ok(1.5)));
    assert_eq!(pass::<_, Unit>(&()), (true, Ok(Unit)));
    let tuple = (-1i64, (), 2i128);
    assert_eq!(pass::<_, Tuple>(&tuple), (true, Ok(Tuple(-1, (), 2))));
    let tiny = Tiny { a: 1, b: 2 };
    assert_eq!(pass::<_, Point>(&tiny), (true, Ok(Point { x: 1, y: 2 })));
}

#[test]
fn bytes_left_over_after_a_value_are_an_error() {
    let mut bytes = postcard::to_stdvec(&7u32).unwrap();
    bytes.extend([1, 2, 3]);
    let (value, _) = Shape::decode::<u32>(&bytes);
    assert_eq!(value, Err("3 B remain after the value".into()));
}

#[test]
fn the_title_of_a_shape_describes_its_type() {
    for (is, should) in [
        (title(&7u32), "u32"),
        (title("text"), "string"),
        (title(&vec![Some(1u8)]), "sequence of some u8"),
        (title(&Vec::<u8>::new()), "sequence of nothing"),
        (title(&everything()), "Everything"),
        (title(&Note::Nothing), "Note"),
        (title(&(1, 2, 3)), "tuple of 3"),
        (title(&()), "unit"),
        (title(&BTreeMap::from([("a", 1)])), "map of string"),
    ] {
        assert_eq!(is, should);
    }
    // A title that does not fit is truncated between words.
    let deep = vec![vec![vec![vec![vec![vec![vec![vec![7u8]]]]]]]];
    assert!(title(&deep).len() <= TITLE && title(&deep).ends_with(" of"));
}

#[derive(Serialize, Deserialize)]
struct Nested(Option<Box<Nested>>);

/// A hostile message that would recurse until the stack is used up.
#[test]
fn the_nesting_of_values_has_a_limit() {
    let (value, _) = Shape::decode::<Nested>(&[1; 1 << 20]);
    let why = value.err().unwrap();
    assert!(why.contains("128 levels"), "{why}");
    let mut value = Nested(None);
    for _ in 0..DEPTH {
        value = Nested(Some(Box::new(value)));
    }
    let refused = Shape::of(&value, 1000).unwrap_err();
    assert!(refused.contains("128 levels"), "{refused}");
}

/// A hostile message of ten bytes that claims more elements than could ever be decoded.
#[test]
fn the_number_of_elements_without_bytes_has_a_limit() {
    let bytes = postcard::to_stdvec(&(u64::MAX >> 2)).unwrap();
    let (value, _) = Shape::decode::<Vec<()>>(&bytes);
    let why = value.err().unwrap();
    assert!(why.contains("too many elements"), "{why}");
}
