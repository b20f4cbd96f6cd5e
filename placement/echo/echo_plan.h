// Echo: replicas of a batch's hot experts in spare slots, for this batch alone. An echo copies
// weights inside an NVLink domain; homes and optimizer state never move.
#ifndef EPLB_PLACEMENT_ECHO_ECHO_PLAN_H_
#define EPLB_PLACEMENT_ECHO_ECHO_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/echo/echo_body.h"
#include "placement/placement.h"

namespace eplb {

struct EchoOptions {
  // Spare slots of each GPU, beside its home slots: 1..kMaxSpareSlots. Spare slot i of GPU g has
  // the number g * spare_slots + i.
  int32_t spare_slots = 2;
  // How far a GPU may be above the mean of the fullest domain: 0..1, taken to 20 bits. The higher
  // it is, the fewer replicas an echo needs.
  double tolerance = 0.01;
  // Groups of neighbouring GPUs that an expert stays in; 0: the nodes of the topology.
  int32_t num_domains = 0;
};

// The echo of one layer of one batch.
struct EchoPlan {
  LayerId layer;
  int32_t spare_slots = 0;            // of each GPU
  EchoPeak peak;                      // with the bound that proves it
  std::vector<int64_t> home_tokens;   // [S], what each home slot keeps
  std::vector<int32_t> source;        // [X], home slot whose expert a spare slot holds, -1: none
  std::vector<int64_t> spare_tokens;  // [X], tokens that the spare slot takes

  friend bool operator==(const EchoPlan&, const EchoPlan&);
};

// A prediction of what it costs to copy the weights of an echo once; gradients go the other way.
struct EchoPrice {
  int64_t bytes = 0;          // of all replicas
  int64_t busiest_bytes = 0;  // that the busiest GPU sends, or receives
  int32_t busiest_gpu = -1;   // -1: nothing is copied
  double seconds = 0;         // of the busiest GPU's link
};

// Plans echoes. Holds the scratch memory, so that a batch costs no allocation once its plan has
// been used before. Threads: one at a time.
class EchoPlanner {
 public:
  static constexpr int32_t kMaxSpareSlots = 1024;

  // homes: outlives the planner; its slots are the home slots. errors: InvalidArgument naming the
  // number: spare slots, tolerance or domains out of their range, or domains that do not divide the
  // GPUs.
  static absl::StatusOr<EchoPlanner> Make(const Placement& homes, const EchoOptions& options = {});

  // The echo of a batch. counts: [E], the tokens of the layer's experts, summed over the EP group.
  // A home slot starts from an equal share of its expert's tokens, the first ones by replica rank
  // taking one more. Equal input gives equal plans on every machine: ranks need not talk.
  // The peak is never above that without echo. It is within the tolerance of the bound where the
  // rule of EchoBody finds such an echo: spare slots may be too few.
  // errors: InvalidArgument naming layer and expert: another number of counts, a negative count, a
  // sum above kMaxEchoTokens. cost: O(S + G log G + replicas * (slots of a GPU + log G)) where the
  // tolerance is reached, else about ten times that.
  absl::Status Plan(LayerId layer, std::span<const int64_t> counts, EchoPlan& plan);
  // As above from given tokens of home slots [S], such as the quotas of BatchSplitter.
  absl::Status PlanFromQuotas(LayerId layer, std::span<const int64_t> quotas, EchoPlan& plan);

  const Placement& homes() const { return *homes_; }
  int32_t spare_slots() const { return spare_slots_; }
  int32_t gpus_per_domain() const { return gpus_per_domain_; }

 private:
  EchoPlanner(const Placement& homes, const EchoOptions& options);
  absl::Status CheckTokens(LayerId layer, const char* what, std::span<const int64_t> tokens,
                           size_t expected) const;
  void Solve(LayerId layer, EchoPlan& plan);

  const Placement* homes_;
  int32_t spare_slots_;
  int32_t gpus_per_domain_;
  int64_t tolerance_;                // in 1 / kEchoToleranceUnit
  std::vector<int32_t> first_slot_;  // [G + 1]
  std::vector<int64_t> load_, order_, receivers_, given_;
  std::vector<int32_t> num_used_;
};

// bytes_per_expert: of the weights; bytes_per_second: of a GPU's link in one direction, above 0.
EchoPrice PriceEcho(const EchoPlan& plan, const Topology& homes, int64_t bytes_per_expert,
                    double bytes_per_second);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_ECHO_ECHO_PLAN_H_
