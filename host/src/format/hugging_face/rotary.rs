//! The rotation of heads, in the formats of all versions of `transformers`.
//!
//! Version 4 has the base and the share at the top level and the scaling in `rope_scaling`; version 5 has everything in
//! `rope_parameters`. GPT-NeoX has other names for the base and the share, and only those count at the top level; files
//! of 4.46 and later contain the usual names too.

use serde_json::Value;

use super::class::Class;
use super::keys::Keys;

/// A number, and the key it came from.
type Said = (f64, Option<String>);

impl Keys<'_> {
    /// The rotation of heads of this size.
    ///
    /// # Errors
    /// An unsupported rotation, or contradicting keys.
    pub(super) fn rotary(&self, class: Class, head_size: i64) -> Result<toml::Table, String> {
        let scaling = self.inside("rope_scaling", "rope_scaling.")?;
        let parameters = self.inside("rope_parameters", "rope_parameters.")?;
        let places: Vec<Keys<'_>> = parameters.into_iter().chain(scaling).collect();
        let neox = class == Class::GptNeox;
        let own = |name| neox.then_some(name);
        let (base, _) = self.said(&places, "rope_theta", own("rotary_emb_base"), 10_000.0)?;
        let share = self.said(&places, "partial_rotary_factor", own("rotary_pct"), if neox { 0.25 } else { 1.0 })?;
        if let (share, Some(key)) = share
            && (share > 1.0 || !neox && class != Class::Yxanul && share != 1.0)
        {
            return Err(format!("{key} is {share}; covered is the rotation of whole heads"));
        }
        let mut table = toml::Table::new();
        let mut put = |key: &str, value: toml::Value| table.insert(key.to_owned(), value);
        put("rotary_base", base.into());
        put("rotary_pct", rotated(share.0, head_size).into());
        let Some(scaling) = scaling.or(parameters) else { return Ok(table) };
        let key = if scaling.get("rope_type").is_some() { "rope_type" } else { "type" };
        match scaling.get(key).map_or(Some("default"), Value::as_str) {
            Some("default") => {}
            Some("linear") => {
                put("rotary_scaling", "linear".into());
                put("rotary_factor", scaling.needed("factor")?.into());
            }
            Some("llama3") => {
                put("rotary_scaling", "llama3".into());
                put("rotary_factor", scaling.needed("factor")?.into());
                put("rotary_low", scaling.needed("low_freq_factor")?.into());
                put("rotary_high", scaling.needed("high_freq_factor")?.into());
                put("rotary_original", scaling.size("original_max_position_embeddings")?.into());
            }
            _ => return Err(scaling.refused(key, "covered are default, linear, llama3")),
        }
        Ok(table)
    }

    /// The number with the name `usual` in any of `places` or, at the top level, with a class's `own` name if it has
    /// one; the default if no key sets it.
    fn said(&self, places: &[Keys<'_>], usual: &str, own: Option<&str>, default: f64) -> Result<Said, String> {
        let mut said: Said = (default, None);
        let there = places.iter().map(|place| (*place, usual)).chain([(*self, own.unwrap_or(usual))]);
        for (place, name) in there.filter(|(place, name)| place.get(name).is_some()) {
            let value = place.number(name, default)?;
            match &said {
                (known, Some(key)) if *known != value => {
                    return Err(place.refused(name, &format!("and {key} is {known}; take away the one that is wrong")));
                }
                (_, Some(_)) => {}
                (_, None) => said = (value, Some(place.name(name))),
            }
        }
        // A class with other names ignores the usual name, which may be present in addition.
        let beside = own.filter(|_| self.get(usual).is_some());
        if let Some(own) = beside.filter(|_| self.number(usual, default).as_ref() != Ok(&said.0)) {
            let known =
                said.1.map_or_else(|| format!("{own} is {default} by default"), |key| format!("{key} is {}", said.0));
            return Err(self.refused(usual, &format!("and {known}, which transformers reads; make them the same")));
        }
        Ok(said)
    }
}

/// The share of a head that gives `share` of its dims, rounded down, as exact numbers of f32.
fn rotated(share: f64, head_size: i64) -> f64 {
    let dims = (share * head_size as f64).floor();
    let rounded = (dims / head_size as f64) as f32;
    let back = |share: f32| (f64::from(share) * head_size as f64).floor();
    f64::from(if back(rounded) < dims { rounded.next_up() } else { rounded })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_dims_rotate_as_in_python() {
        for head_size in 1..200 {
            for percent in 1..=100 {
                let share = f64::from(percent) / 100.0;
                let dims = (share * head_size as f64).floor();
                assert_eq!((f64::from(rotated(share, head_size) as f32) * head_size as f64).floor(), dims);
            }
        }
    }
}
