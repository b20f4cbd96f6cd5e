// Values, text and JSON of `eplbctl explain` and `eplbctl top`: a job, its newest load window with
// the loads of the GPUs, the current placement, and the decision that led to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/gpu_picture.h"
#include "client/cli/query_client.h"
#include "client/cli/terminal.h"
#include "placement/evaluate.h"
#include "placement/migration_plan.h"
#include "proto/wire/messages.h"

#include "eplb/v1/query.pb.h"
#include "eplb/v1/review.pb.h"

namespace eplb::cli {

struct Explanation {
  v1::JobStatus job;
  std::vector<v1::Plan> plans;                // newest first
  std::optional<wire::PlacementBody> body;    // current
  std::optional<wire::PlacementBody> before;  // the placement before switched(), while it is kept
  std::optional<AskedLoad> load;              // the newest complete window
  // GPU loads of that window. Absent if the daemon has no record of the placements it ran under.
  std::optional<Evaluation> measured;
  std::optional<Evaluation> computed;          // `body` under the load of that window
  std::optional<Evaluation> unmoved;           // the static layout under the same load
  std::optional<Evaluation> evaluated_before;  // `before` under the same load
  // Figures of shown(), worst balanced first; empty without shown().
  std::vector<v1::LayerFigures> layers;

  // The plan that led to the current version; null if none is known.
  const v1::Plan* switched() const;
  // True if every step of the window ran under the current placement.
  bool ran_in_force() const;
  // `measured` if it is known, otherwise `computed`; null without a window.
  const Evaluation* shown() const;
  // "measured" or "computed": the one that shown() returns.
  const char* shown_name() const { return measured ? "measured" : "computed"; }
};

// errors: those of the questions, but for NotFound of placements and loads, which leave their
// fields empty; Internal if the daemon's answers do not fit together.
absl::StatusOr<Explanation> AskExplanation(const QueryOptions& options, const std::string& job);

// Returns the transfers between GPUs of a layer by which switched() reached the current placement.
// Absent if the placement before it is not known.
std::optional<std::vector<Transfer>> TransfersOf(const Explanation& explanation, int32_t layer);

// "layer 3 (model layer 6)".
std::string LayerName(const v1::JobStatus& job, int32_t layer);

// Returns one line. layer, expert: < 0 for none.
// {"job","state","paused","pause_reason","waiting_for","version","settings":{..},"split",
// "measured_split","balancedness","balancedness_without_eplb","balancedness_static",
// "window":{"first_step","last_step"},"balancedness_predicted","prediction_error",
// "balancedness_seen","switched":plan|null,"newest":plan|null,
// "candidates":[{"name","in_use","windows","balancedness","net_seconds","realized"}],
// "load_window":{"first_step","last_step"},"layers_are","layers":[{"layer","model_layer",
// "balancedness","hottest_gpu","hottest_gpu_load","hottest_expert","hottest_expert_share",
// "hottest_expert_replicas"}]}
// "balancedness", its two counterfactuals and "window" describe the newest measured window and are
// null before the first one. "layers_are" is "measured" or "computed" (the current placement under
// the load of "load_window"). A layer adds {"gpu_loads":[..]|null, measured,
// "gpu_loads_computed":[..],"gpu_loads_before":[..]|null,"moved":[{"expert","from","to"}]|null}, an
// expert {"expert":{"expert","share","slots":[..],"gpus":[..],"gpus_before":[..]|null}}. With
// "split" "batch" GPU loads are those of an exact split of the whole window, which is the best.
std::string ExplanationToJson(const Explanation& explanation, int32_t layer, int32_t expert);

// ---- as text

// Number of transfers that a text lists; JSON has them all.
inline constexpr size_t kTransfersShown = 40;

// "12 (GPU 0 -> 3)".
std::string TransferText(const Transfer& transfer);

// "and 1,234 more (-o json lists all)"; empty if all `count` are shown.
std::string MoreTransfersText(size_t count);

enum class LayerOrder { kWorst, kNumber, kExpert };  // kExpert: hottest expert first
// At most `most` layers in this order, with their hottest GPU and expert; empty without figures.
std::string LayersText(const Explanation& explanation, LayerOrder order, size_t most,
                       const Terminal& terminal);

// Draws the loads of the job's GPUs as multiples of the mean afterwards, which it fills in with the
// unusable GPUs; empty without load.
std::string DrawJobLoads(const Explanation& explanation, GpuPicture picture,
                         const Terminal& terminal);

std::string ExplainJob(const Explanation& explanation, const Terminal& terminal);
// REQUIRES: the job has the layer, and explanation.shown() is not null.
std::string ExplainLayer(const Explanation& explanation, int32_t layer, const Terminal& terminal);
// REQUIRES: also that the job has the expert.
std::string ExplainExpert(const Explanation& explanation, int32_t layer, int32_t expert,
                          const Terminal& terminal);

}  // namespace eplb::cli
