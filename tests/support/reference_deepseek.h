// DeepSeek's `rebalance_experts` again, written from the description of its semantics, as slow and
// as literal as possible and sharing no code with the product: what the policy `deepseek` is
// compared with beyond the recorded cases.
#ifndef EPLB_TESTS_SUPPORT_REFERENCE_DEEPSEEK_H_
#define EPLB_TESTS_SUPPORT_REFERENCE_DEEPSEEK_H_

#include <optional>
#include <vector>

namespace eplb::testing {

struct ReferenceLayer {
  std::vector<int> physical_to_logical;  // [S]
  std::vector<int> replica_rank;         // [S]
  std::vector<int> counts;               // [E]
};

struct ReferenceShape {
  int slots = 0;
  int groups = 1;
  int nodes = 1;
  int gpus = 1;
};

// One layer; nothing for a shape that the reference refuses. stable: lower index first among equal
// values, else the order of std::sort over (value, index).
std::optional<ReferenceLayer> ReferenceRebalance(const std::vector<float>& weight,
                                                 ReferenceShape shape, bool stable);

// torch's float32 row sum.
float ReferenceSum(const std::vector<float>& row);

// torch's descending order.
std::vector<int> ReferenceOrder(const std::vector<float>& values, bool stable);

}  // namespace eplb::testing

#endif  // EPLB_TESTS_SUPPORT_REFERENCE_DEEPSEEK_H_
