// A mixture of experts small enough for a test, with real arithmetic: routing, forward, backward
// and Adam in fp32, weights in bf16 as copies of their fp32 masters. What an expert computes
// depends on its own row and on the tokens it is given, in their order, and on nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace eplb {

inline constexpr int32_t kMoeLayers = 2;
inline constexpr int32_t kMoeExperts = 8;
inline constexpr int32_t kTopK = 2;
inline constexpr size_t kWidth = 8;
inline constexpr size_t kHidden = 12;
inline constexpr size_t kMatrix = kWidth * kHidden;  // elements of each of the two
inline constexpr size_t kParameters = 2 * kMatrix;   // parameters of an expert
// Tokens of a step. They are so few that some experts get none in a step and miss its update, so
// the number of updates then differs between experts.
inline constexpr int32_t kTokens = 16;

using TokenVector = std::array<float, kWidth>;
using HiddenVector = std::array<float, kHidden>;

// Everything that belongs to one expert, where it lies.
struct ExpertRow {
  std::span<uint16_t> first_weight;   // bf16 [hidden, width]
  std::span<uint16_t> second_weight;  // bf16 [width, hidden]
  std::span<float> master;            // [parameters], the first matrix, then the second
  std::span<float> first_moment;      // [parameters]
  std::span<float> second_moment;     // [parameters]
  int64_t* num_updates = nullptr;
  float* gain = nullptr;  // derived from the second matrix; the output is scaled with it
};

// The expert before step 0.
void InitialiseExpert(int32_t layer, int32_t expert, const ExpertRow& row);

// Computes the gain again, from the weights as they lie there.
void RebuildGain(const ExpertRow& row);

// gain * second * silu(first * input). hidden: first * input, for the way back.
TokenVector Forward(const ExpertRow& row, const TokenVector& input, HiddenVector& hidden);

// Adds one token's gradient to `gradient` [parameters]; the gain counts as a constant. returns: the
// gradient of the input.
TokenVector Backward(const ExpertRow& row, const TokenVector& input, const HiddenVector& hidden,
                     const TokenVector& output_gradient, std::span<float> gradient);

// One Adam step, with bias correction by the expert's own number of updates.
void Update(const ExpertRow& row, std::span<const float> gradient);

// The experts of a token by a fixed projection of `input`, the best first; the gates are the
// softmax of their scores and are constants to the backward pass.
struct Route {
  std::array<int32_t, kTopK> experts{};
  std::array<float, kTopK> gates{};
};
Route RouteToken(int32_t layer, const TokenVector& input);

// The data: token `token` of a step, and what the model should make of it.
TokenVector InputOf(int64_t step, int32_t token);
TokenVector TargetOf(const TokenVector& input);

}  // namespace eplb
