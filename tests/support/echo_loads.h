// Loads of one batch with a given imbalance: the largest GPU load over the mean, homes in order.
#ifndef EPLB_TESTS_SUPPORT_ECHO_LOADS_H_
#define EPLB_TESTS_SUPPORT_ECHO_LOADS_H_

#include <cstdint>
#include <vector>

namespace eplb::testing {

struct EchoShape {
  int32_t num_gpus = 64;
  int32_t homes = 4;                        // of each GPU
  int64_t tokens = int64_t{64} * 4096 * 8;  // 4096 tokens of each GPU, top-8
};

// How the tokens of experts differ.
enum class Skew {
  kZipf,             // popularity i^-s over all experts, at random homes
  kOneHotExpertEach  // every GPU has one hot expert, whose popularity is i^-s over the GPUs
};

// [E], with s bisected so that the imbalance is met. The same on machines with equal pow().
std::vector<int64_t> LoadWithImbalance(const EchoShape& shape, Skew skew, double imbalance,
                                       uint64_t seed);

}  // namespace eplb::testing

#endif  // EPLB_TESTS_SUPPORT_ECHO_LOADS_H_
