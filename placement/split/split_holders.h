// Sets of GPUs that a split derives from a placement once: holders of experts, and neighbours.
#pragma once

#include <cstdint>

#include "placement/split/gpu_set.h"

namespace eplb {

// Writes the GPUs that hold the expert of each part: once a placement.
template <int kWords, class Layer>
void FindHolders(const Layer& layer, GpuSet<kWords>* holders) {
  for (int32_t expert = 0; expert < layer.num_replicated; ++expert) {
    auto set = GpuSet<kWords>::None();
    const int32_t begin = layer.first_of_expert[expert];
    const int32_t end = layer.first_of_expert[expert + 1];
    for (int32_t i = begin; i < end; ++i) set.Add(layer.expert_gpu[i]);
    for (int32_t i = begin; i < end; ++i) holders[layer.expert_part[i]] = set;
  }
}

// Writes the GPUs [G] that share an expert with each GPU: once a placement, if the team keeps
// steps.
template <int kWords, class Layer>
void FindNeighbours(const Layer& layer, const GpuSet<kWords>* holders, GpuSet<kWords>* neighbours) {
  for (int32_t gpu = 0; gpu < layer.num_gpus; ++gpu) {
    neighbours[gpu] = GpuSet<kWords>::None();
    for (int32_t part = layer.first_on_gpu[gpu]; part < layer.first_on_gpu[gpu + 1]; ++part) {
      neighbours[gpu].AddAll(holders[part]);
    }
  }
}

}  // namespace eplb
