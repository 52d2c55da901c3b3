//! Two descriptions of the same model give the same logits, bit for bit: names, biases, embeddings and key heads
//! without a fixture are thereby checked against those with one.

use super::super::differences::waves;
use super::block::fuse;
use super::names::Projection;
use super::*;

const IDS: [u32; 7] = [3, 1, 4, 1, 5, 9, 2];

#[track_caller]
fn assert_same(one: (&Config, &Tensors), other: (&Config, &Tensors)) {
    let of = |(config, weights)| logits(config, weights, &IDS, IDS.len());
    assert_eq!(of(one), of(other), "{:?}", one.0);
}

#[test]
fn names_are_only_names() {
    for config in mixtures().into_iter().filter(|c| c.kv_heads < c.heads) {
        let names = if config.names == Names::Llama { Names::GptNeox } else { Names::Llama };
        let other = Config { names, ..config };
        // The numbers of the formula's weights depend on the order of tensors.
        assert_same((&config, &config.formula_weights(0.4)), (&other, &other.formula_weights(0.4)));
    }
}

#[test]
fn biases_of_zero_are_none() {
    for config in mixtures() {
        let [with, without] = [Biases::ALL, Biases::NONE].map(|bias| Config { bias, ..config });
        let mut weights = with.formula_weights(0.4);
        let kept: Vec<String> = without.tensors().into_iter().map(|(name, _)| name).collect();
        weights.iter_mut().filter(|(name, _)| !kept.contains(name)).for_each(|(_, bias)| bias.data.fill(0.0));
        let fewer: Tensors = weights.clone().into_iter().filter(|(name, _)| kept.contains(name)).collect();
        assert_eq!(weights.len() - fewer.len(), linear_layers(&config) * config.layers);
        assert_same((&with, &weights), (&without, &fewer));
    }
}

/// The number of linear layers in a block.
fn linear_layers(config: &Config) -> usize {
    let projections = match config.projection() {
        Projection::Fused(_) => 1,
        Projection::Separate(names) => names.len(),
    };
    projections + if config.feed == Feed::SwiGlu { 4 } else { 3 }
}

#[test]
fn factors_are_their_product_and_a_tied_head_is_the_embedding_again() {
    for config in mixtures() {
        let factorised = Config { rank: Some(5), tied: true, ..config };
        let tied = Config { rank: None, ..factorised };
        let untied = Config { tied: false, ..tied };
        let mut weights = factorised.formula_weights(0.4);
        let product = Tensor::new(&[config.vocab, config.d], table(Named::new(&factorised, &weights)));
        let before = weights.clone();
        config.factors().iter().for_each(|name| drop(weights.remove(name)));
        weights.insert(config.embedding(), product.clone());
        assert_same((&factorised, &before), (&tied, &weights));
        let before = weights.clone();
        weights.insert(config.head(), product);
        assert_same((&tied, &before), (&untied, &weights));
        // Another head is another model.
        weights.insert(config.head(), Tensor::new(&[config.vocab, config.d], waves(5, config.vocab * config.d)));
        assert_ne!(logits(&tied, &before, &IDS, IDS.len()), logits(&untied, &weights, &IDS, IDS.len()));
    }
}

#[test]
fn a_shared_key_head_is_one_that_is_written_for_each_of_its_queries() {
    for config in mixtures().into_iter().filter(|c| c.kv_heads < c.heads) {
        let own = Config { kv_heads: config.heads, ..config };
        let shared = config.formula_weights(0.4);
        let mut weights = shared.clone();
        for layer in 0..config.layers {
            give_each_its_own(&config, &own, layer, &mut weights);
        }
        // And the head's columns of a value table.
        for name in (0..config.value_tables).map(|table| config.value_table(table)) {
            let heads = weights[&name].data.chunks(config.head_size);
            let data = heads.flat_map(|head| head.repeat(config.heads / config.kv_heads)).collect();
            weights.insert(name, Tensor::new(&[config.vocab, config.heads * config.head_size], data));
        }
        assert_same((&config, &shared), (&own, &weights));
    }
}

/// Replaces the shared key and value heads of a layer's `weights` with a copy for every query head.
fn give_each_its_own(config: &Config, own: &Config, layer: usize, weights: &mut Tensors) {
    let Projection::Separate(names) = config.projection() else { panic!("shared heads are separate") };
    let mut kinds = vec![("weight", config.head_size * config.d)];
    kinds.extend(config.bias.qkv.then_some(("bias", config.head_size)));
    for (kind, head) in kinds {
        let full = |name: &str| format!("{}.{kind}", config.part(layer, name));
        let [q, k, v] = names.map(|name| weights.remove(&full(name)).expect("a tensor").data);
        let repeated = |x: Vec<f64>| -> Vec<f64> {
            x.chunks(head).flat_map(|one| one.repeat(config.heads / config.kv_heads)).collect()
        };
        let parts = [q, repeated(k), repeated(v)];
        let mut put = |name: &str, data: Vec<f64>| {
            let rows = data.len() / (head / config.head_size);
            let shape = if kind == "bias" { vec![rows] } else { vec![rows, config.d] };
            weights.insert(full(name), Tensor::new(&shape, data));
        };
        match own.projection() {
            Projection::Fused(name) => put(name, fuse(&parts, head)),
            Projection::Separate(names) => names.into_iter().zip(parts).for_each(|(name, data)| put(name, data)),
        }
    }
}
