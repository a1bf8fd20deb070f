//! The JSON object of one request. It has few keys and each is looked up once or twice, so a list in the order of the file
//! takes half the time of a hash map.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

/// Keys with their values, as the file has them.
#[derive(Debug)]
pub(super) struct Object(Vec<(String, Value)>);

impl Object {
    /// The value of `key`; of several the last, as everywhere in JSON.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// The same as the map that other readers take.
    pub fn to_map(&self) -> Map<String, Value> {
        self.0.iter().cloned().collect()
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut fields = Vec::with_capacity(8);
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::Object;

    #[test]
    fn the_last_of_equal_keys_counts_and_other_values_are_refused() {
        let object: Object = serde_json::from_str(r#"{"a": 1, "b": null, "a": 2}"#).unwrap();
        assert_eq!(object.get("a").and_then(|value| value.as_u64()), Some(2));
        assert!(object.contains_key("b") && !object.contains_key("c"));
        assert_eq!(object.to_map().len(), 2);
        assert!(serde_json::from_str::<Object>("[1]").unwrap_err().is_data());
        assert!(serde_json::from_str::<Object>("{\"a\": ").unwrap_err().is_eof());
    }
}
