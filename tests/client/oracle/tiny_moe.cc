#include "tests/client/oracle/tiny_moe.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace eplb {
namespace {

constexpr float kLearningRate = 1e-2f;
constexpr float kBeta1 = 0.9f;
constexpr float kBeta2 = 0.99f;
constexpr float kEpsilon = 1e-8f;

// A number in [-1, 1) that depends on the three alone; the mix is the finaliser of SplitMix64.
float Draw(uint64_t what, uint64_t where, uint64_t i) {
  uint64_t x = what * 0x9e3779b97f4a7c15u + where * 0xbf58476d1ce4e5b9u + i * 0x94d049bb133111ebu;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<float>(static_cast<int32_t>(x >> 32)) * 0x1p-31f;
}

constexpr uint64_t kWeightDraw = 1;
constexpr uint64_t kRouterDraw = 2;
constexpr uint64_t kInputDraw = 3;

// Round to nearest, ties to even; the values here are finite.
uint16_t ToBfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float FromBfloat16(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

void CopyMaster(const ExpertRow& row) {
  std::transform(row.master.begin(), row.master.begin() + kMatrix, row.first_weight.begin(),
                 ToBfloat16);
  std::transform(row.master.begin() + kMatrix, row.master.end(), row.second_weight.begin(),
                 ToBfloat16);
  RebuildGain(row);
}

}  // namespace

void RebuildGain(const ExpertRow& row) {
  float sum = 0;
  for (const uint16_t weight : row.second_weight) {
    sum += FromBfloat16(weight) * FromBfloat16(weight);
  }
  *row.gain = 1 / std::sqrt(1 + sum / kMatrix);
}

void InitialiseExpert(int32_t layer, int32_t expert, const ExpertRow& row) {
  const int32_t where = layer * kMoeExperts + expert;
  for (size_t i = 0; i < kParameters; ++i)
    row.master[i] = 0.5f * Draw(kWeightDraw, static_cast<uint64_t>(where), i);
  std::fill(row.first_moment.begin(), row.first_moment.end(), 0.0f);
  std::fill(row.second_moment.begin(), row.second_moment.end(), 0.0f);
  *row.num_updates = 0;
  CopyMaster(row);
}

TokenVector Forward(const ExpertRow& row, const TokenVector& input, HiddenVector& hidden) {
  TokenVector output{};
  for (size_t h = 0; h < kHidden; ++h) {
    hidden[h] = 0;
    for (size_t w = 0; w < kWidth; ++w) {
      hidden[h] += FromBfloat16(row.first_weight[h * kWidth + w]) * input[w];
    }
    const float active = *row.gain * hidden[h] * Sigmoid(hidden[h]);
    for (size_t w = 0; w < kWidth; ++w) {
      output[w] += FromBfloat16(row.second_weight[w * kHidden + h]) * active;
    }
  }
  return output;
}

TokenVector Backward(const ExpertRow& row, const TokenVector& input, const HiddenVector& hidden,
                     const TokenVector& output_gradient, std::span<float> gradient) {
  TokenVector input_gradient{};
  for (size_t h = 0; h < kHidden; ++h) {
    const float gate = Sigmoid(hidden[h]);
    float active_gradient = 0;
    for (size_t w = 0; w < kWidth; ++w) {
      const size_t i = w * kHidden + h;
      active_gradient += FromBfloat16(row.second_weight[i]) * output_gradient[w];
      gradient[kMatrix + i] += output_gradient[w] * *row.gain * hidden[h] * gate;
    }
    const float hidden_gradient = *row.gain * active_gradient * gate * (1 + hidden[h] * (1 - gate));
    for (size_t w = 0; w < kWidth; ++w) {
      const size_t i = h * kWidth + w;
      input_gradient[w] += FromBfloat16(row.first_weight[i]) * hidden_gradient;
      gradient[i] += hidden_gradient * input[w];
    }
  }
  return input_gradient;
}

void Update(const ExpertRow& row, std::span<const float> gradient) {
  const auto updates = static_cast<float>(++*row.num_updates);
  const float first_correction = 1 - std::pow(kBeta1, updates);
  const float second_correction = 1 - std::pow(kBeta2, updates);
  for (size_t i = 0; i < kParameters; ++i) {
    row.first_moment[i] = kBeta1 * row.first_moment[i] + (1 - kBeta1) * gradient[i];
    row.second_moment[i] = kBeta2 * row.second_moment[i] + (1 - kBeta2) * gradient[i] * gradient[i];
    const float first = row.first_moment[i] / first_correction;
    const float second = row.second_moment[i] / second_correction;
    row.master[i] -= kLearningRate * first / (std::sqrt(second) + kEpsilon);
  }
  CopyMaster(row);
}

Route RouteToken(int32_t layer, const TokenVector& input) {
  std::array<float, kMoeExperts> scores{};
  for (size_t expert = 0; expert < scores.size(); ++expert) {
    const uint64_t where = static_cast<uint64_t>(layer) * kMoeExperts + expert;
    for (size_t w = 0; w < kWidth; ++w) {
      scores[expert] += Draw(kRouterDraw, where, w) * input[w];
    }
  }
  std::array<int32_t, kMoeExperts> order{};
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  Route route;
  float sum = 0;
  for (size_t k = 0; k < kTopK; ++k) {
    route.experts[k] = order[k];
    route.gates[k] = std::exp(scores[static_cast<size_t>(order[k])]);
    sum += route.gates[k];
  }
  for (float& gate : route.gates) gate /= sum;
  return route;
}

TokenVector InputOf(int64_t step, int32_t token) {
  TokenVector input{};
  const auto where = static_cast<uint64_t>(step * kTokens + token);
  for (size_t w = 0; w < kWidth; ++w) input[w] = Draw(kInputDraw, where, w);
  return input;
}

TokenVector TargetOf(const TokenVector& input) {
  TokenVector target{};
  for (size_t w = 0; w < kWidth; ++w) target[w] = input[w] + input[(w + 1) % kWidth] / 2;
  return target;
}

}  // namespace eplb
