//! The receiver's half: a deserialiser around another one, which records the requested shape.

use super::Shape;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use std::fmt;

/// A part of the decoder (a deserialiser, a visitor, an accessor or a seed) together with the shape.
pub(super) struct Reader<'s, X> {
    inner: X,
    shape: &'s mut Shape,
}

impl<'s, X> Reader<'s, X> {
    pub(super) fn new(inner: X, shape: &'s mut Shape) -> Self {
        Self { inner, shape }
    }
}

/// Methods for values without parts.
macro_rules! leaves {
    ($($method:ident = $word:literal;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.shape.leaf($word).map_err(D::Error::custom)?;
            self.inner.$method(visitor)
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Reader<'_, D> {
    type Error = D::Error;

    leaves! {
        deserialize_bool = "bool";
        deserialize_i8 = "i8";
        deserialize_i16 = "i16";
        deserialize_i32 = "i32";
        deserialize_i64 = "i64";
        deserialize_i128 = "i128";
        deserialize_u8 = "u8";
        deserialize_u16 = "u16";
        deserialize_u32 = "u32";
        deserialize_u64 = "u64";
        deserialize_u128 = "u128";
        deserialize_f32 = "f32";
        deserialize_f64 = "f64";
        deserialize_char = "char";
        deserialize_str = "string";
        deserialize_string = "string";
        deserialize_bytes = "bytes";
        deserialize_byte_buf = "bytes";
        deserialize_unit = "unit";
    }

    // The format is not self-describing, so the decoder returns an error for these three.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_identifier(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_ignored_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let visitor = Reader::new(visitor, self.shape);
        self.inner.deserialize_option(visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.shape.name(name);
        self.shape.leaf("unit").map_err(D::Error::custom)?;
        self.inner.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.shape.enter_newtype(name).map_err(D::Error::custom)?;
        let visitor = Reader::new(visitor, &mut *self.shape);
        let value = self.inner.deserialize_newtype_struct(name, visitor)?;
        self.shape.leave_newtype();
        Ok(value)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.shape.enter("sequence of").map_err(D::Error::custom)?;
        let visitor = Reader::new(visitor, &mut *self.shape);
        let value = self.inner.deserialize_seq(visitor)?;
        leave(self.shape)?;
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.shape.enter_tuple(len).map_err(D::Error::custom)?;
        let visitor = Reader::new(visitor, &mut *self.shape);
        let value = self.inner.deserialize_tuple(len, visitor)?;
        leave(self.shape)?;
        Ok(value)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.shape
            .enter_named("tuple", name)
            .map_err(D::Error::custom)?;
        let visitor = Reader::new(visitor, &mut *self.shape);
        let value = self.inner.deserialize_tuple_struct(name, len, visitor)?;
        leave(self.shape)?;
        Ok(value)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.shape.enter("map of").map_err(D::Error::custom)?;
        let visitor = Reader::new(visitor, &mut *self.shape);
        let value = self.inner.deserialize_map(visitor)?;
        leave(self.shape)?;
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.shape
            .enter_named("struct", name)
            .map_err(D::Error::custom)?;
        let visitor = Reader::new(visitor, &mut *self.shape);
        let value = self.inner.deserialize_struct(name, fields, visitor)?;
        leave(self.shape)?;
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.shape
            .enter_named("enum", name)
            .map_err(D::Error::custom)?;
        let visitor = Reader::new(visitor, &mut *self.shape);
        let value = self.inner.deserialize_enum(name, variants, visitor)?;
        leave(self.shape)?;
        Ok(value)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

fn leave<E: Error>(shape: &mut Shape) -> Result<(), E> {
    shape.leave().map_err(E::custom)
}

/// The visitor of a value with parts: passes the shape on to the parts.
impl<'de, V: Visitor<'de>> Visitor<'de> for Reader<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.shape.leaf("none").map_err(E::custom)?;
        self.inner.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, decoder: D) -> Result<V::Value, D::Error> {
        self.shape.enter("some").map_err(D::Error::custom)?;
        let decoder = Reader::new(decoder, &mut *self.shape);
        let value = self.inner.visit_some(decoder)?;
        leave(self.shape)?;
        Ok(value)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, decoder: D) -> Result<V::Value, D::Error> {
        let decoder = Reader::new(decoder, self.shape);
        self.inner.visit_newtype_struct(decoder)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(Reader::new(parts, self.shape))
    }

    fn visit_map<A: MapAccess<'de>>(self, parts: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Reader::new(parts, self.shape))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, choice: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Reader::new(choice, self.shape))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Reader<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, decoder: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Reader::new(decoder, self.shape))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Reader<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = Reader::new(seed, &mut *self.shape);
        self.inner.next_element_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Reader<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = Reader::new(seed, &mut *self.shape);
        self.inner.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let seed = Reader::new(seed, &mut *self.shape);
        self.inner.next_value_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, 's, A: EnumAccess<'de>> EnumAccess<'de> for Reader<'s, A> {
    type Error = A::Error;
    type Variant = Reader<'s, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let seed = Number {
            seed,
            shape: &mut *self.shape,
        };
        let (value, variant) = self.inner.variant_seed(seed)?;
        Ok((value, Reader::new(variant, self.shape)))
    }
}

/// The seed of a variant's number.
struct Number<'s, S> {
    seed: S,
    shape: &'s mut Shape,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Number<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, decoder: D) -> Result<S::Value, D::Error> {
        let number = u32::deserialize(decoder)?;
        self.shape
            .mark_number(u64::from(number))
            .map_err(D::Error::custom)?;
        self.seed.deserialize(number.into_deserializer())
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Reader<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.shape.mark("unit").map_err(A::Error::custom)?;
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.shape.mark("newtype").map_err(A::Error::custom)?;
        let seed = Reader::new(seed, self.shape);
        self.inner.newtype_variant_seed(seed)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.shape.mark("tuple").map_err(A::Error::custom)?;
        let visitor = Reader::new(visitor, self.shape);
        self.inner.tuple_variant(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.shape.mark("struct").map_err(A::Error::custom)?;
        let visitor = Reader::new(visitor, self.shape);
        self.inner.struct_variant(fields, visitor)
    }
}
