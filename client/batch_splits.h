// The exact splits of batches under a placement, as a client and the C ABI make them: checked,
// never partly written, and prepared anew when another placement is shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "client/client.h"
#include "placement/gpu_speeds.h"
#include "placement/placement.h"
#include "placement/split/batch_split.h"

namespace eplb {

// Reads the relative speeds of a call, of which 0 makes a GPU unusable. No value: none were given,
// and all are equal. errors: as GpuSpeeds::Make.
absl::StatusOr<std::optional<GpuSpeeds>> ReadSpeeds(std::span<const double> given,
                                                    int32_t num_gpus);

// GPU whose own quotas are computed, and the target of a split; Client::Split has the shapes.
struct SplitTarget {
  GpuId self;
  std::span<int64_t> quotas;
  std::span<int64_t> own;  // empty: not asked for
};

// Client::Split describes arguments, errors and cost. Threads: safe; calls run one after the other.
class BatchSplits {
 public:
  BatchSplits(std::shared_ptr<const Placement> placement, int64_t version);
  BatchSplits(const BatchSplits&) = delete;
  BatchSplits& operator=(const BatchSplits&) = delete;

  // The splits that follow are of this placement, which has the shape of the one before. Layers
  // that it leaves as they were stay prepared.
  void Show(std::shared_ptr<const Placement> placement, int64_t version)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Prepares a layer that Show or SetOptions left to its next split, so that this one does not
  // wait. False if there is none. errors: as GraphOf; the next call takes the next layer.
  absl::StatusOr<bool> PrepareNext() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SetOptions(const SplitOptions& options) ABSL_LOCKS_EXCLUDED(mutex_);
  SplitOptions options() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Number of calls of SetOptions without an error.
  int64_t options_version() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<const Placement> placement() const ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<SplitFigures> Split(LayerId layer, const BatchCounts& counts,
                                     const SplitTarget& target) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the figures of a batch of the placement that is shown by its quotas [S], but for
  // tight_gpus.
  SplitFigures FiguresOf(LayerId layer, std::span<const int64_t> quotas) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the graph of a layer of `placement` alone, with the options. placement: of the shape of
  // the one that is shown. errors: as SplitGraph::Make.
  absl::StatusOr<SplitGraph> GraphOf(const Placement& placement, LayerId layer) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Checks totals or counts by GPU for Split. errors: InvalidArgument, see Split.
  absl::Status Check(LayerId layer, const BatchCounts& counts) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // One layer, which a switch need not have changed.
  struct Prepared {
    explicit Prepared(SplitGraph made) : graph(std::move(made)), splitter(graph) {}
    SplitGraph graph;  // graph of this layer alone
    BatchSplitter splitter;
  };

  absl::Status Prepare(LayerId layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The totals of `counts`, which may be sums in `sums_`. errors: InvalidArgument.
  absl::StatusOr<std::span<const int64_t>> TotalsOf(LayerId layer, const BatchCounts& counts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteOwn(LayerId layer, const BatchCounts& counts, const SplitTarget& target) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SplitFigures FiguresOf(LayerId layer, std::span<const int64_t> quotas,
                         std::span<const int64_t> totals) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double PeakOf(std::span<const int64_t> slot_tokens) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::shared_ptr<const Placement> placement_ ABSL_GUARDED_BY(mutex_);
  int64_t version_ ABSL_GUARDED_BY(mutex_);
  std::optional<GpuSpeeds> speeds_ ABSL_GUARDED_BY(mutex_);
  double slack_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t options_version_ ABSL_GUARDED_BY(mutex_) = 0;
  // [L], null: by the layer's next split.
  std::vector<std::unique_ptr<Prepared>> prepared_ ABSL_GUARDED_BY(mutex_);
  size_t next_to_prepare_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<int64_t> quotas_ ABSL_GUARDED_BY(mutex_);  // [S], until all is well
  std::vector<int64_t> sums_ ABSL_GUARDED_BY(mutex_);    // [E]
};

}  // namespace eplb
