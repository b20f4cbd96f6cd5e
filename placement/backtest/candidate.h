// What `auto` chooses among: a policy, the load that it is asked with, and how often.
// threads: safe, no state.
#ifndef EPLB_PLACEMENT_BACKTEST_CANDIDATE_H_
#define EPLB_PLACEMENT_BACKTEST_CANDIDATE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/evaluate.h"
#include "placement/load.h"

namespace eplb {

// The load of the next windows, as the newest ones tell it.
enum class LoadEstimate {
  kLast,     // the newest window
  kAverage,  // exponential average, each window half of what is left
  kSum,      // of the newest kEstimateWindows
};

inline constexpr size_t kEstimateWindows = 4;  // that the longest estimate looks at

struct Candidate {
  std::string_view policy;  // of the registry
  LoadEstimate estimate = LoadEstimate::kLast;
  int32_t cadence = 1;  // opportunities to decide, from one decision to the next

  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// "incremental, last window, every window"; "do nothing" of one without a policy.
std::string TextOf(const Candidate& candidate);
inline constexpr std::string_view kNoPolicyName = "none";  // of a candidate that does nothing
// "incremental/last/1": for JSON and labels; kNoPolicyName of one without a policy.
std::string NameOf(const Candidate& candidate);

// Every policy that the registry has for this split, with every estimate, at cadences 1, 2 and 4.
// The first is the one to begin with, while nothing is known of the job.
std::vector<Candidate> CandidatesFor(SplitMode split);

// A load window of the job.
struct SeenWindow {
  std::shared_ptr<const Load> load;  // [L, E]
  int64_t num_steps = 1;             // >= 1
};

struct ExpectedLoad {
  Load load;
  double num_steps = 1;      // that it stands for
  std::vector<Load> recent;  // the windows that it was made of, oldest first,
  double recent_steps = 1;   // and how many steps they have together
};

// windows: oldest first, at least one. errors: those of CombineLoads.
absl::StatusOr<ExpectedLoad> ExpectLoad(LoadEstimate estimate, std::span<const SeenWindow> windows);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_BACKTEST_CANDIDATE_H_
