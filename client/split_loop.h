// The split of a batch in the order of a stream: counts of this rank's choices, and slots by the
// counts of all ranks. For tensors on a GPU a thread of the client computes the split while the
// stream waits, or a kernel does, so that the caller does not wait. For tensors in host memory the
// call computes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "client/batch_splits.h"
#include "client/client.h"
#include "client/gpu_split_tables.h"
#include "client/session/split_sums.h"
#include "cuda/quota_route.h"
#include "cuda/row_queue.h"
#include "cuda/split_exchange.h"

namespace eplb {

// Parts of a client that the loop uses; what they refer to outlives it.
struct SplitLoopParts {
  Topology topology;
  GpuId self;
  std::optional<int32_t> device;  // device of the tables; no value: host memory
  const DeviceTables& tables;
  const int32_t* table_numbers = nullptr;   // [L], beside the tables; see RouteArrays::number
  const int32_t* newest_numbers = nullptr;  // [L], see RouteTables::newest_numbers
  bool takes_sums = false;                  // TakeSums is called after each step
  BatchSplits& splits;
  cuda::RowQueue& queue;  // allocates in the memory of the tables
};

// Client::PrepareSplit, CountFor and RouteFrom have the arguments, whose arrays are in the memory
// of the tables. Every address that a launch takes is fixed, and every size is a bound for all
// placements of the topology, so that a captured graph outlives a switch. A quota of another
// placement is harmless: a choice goes to a slot of its expert in the tables, by quota or drawn.
// Threads: one caller; figures: any.
class SplitLoop {
 public:
  // errors: InvalidArgument naming the field; ResourceExhausted; Internal from CUDA.
  static absl::StatusOr<std::unique_ptr<SplitLoop>> Make(const SplitSetup& setup,
                                                         const SplitLoopParts& parts);
  // Ends the thread. REQUIRES: no stream holds work of the loop.
  ~SplitLoop() { Stop(); }
  SplitLoop(const SplitLoop&) = delete;
  SplitLoop& operator=(const SplitLoop&) = delete;

  absl::Status CountFor(int32_t layer, const cuda::CountArgs& choices, int64_t* row, void* stream);
  absl::Status RouteFrom(int32_t layer, const int64_t* gathered, void* slots, void* stream);
  // Ends the thread, if there is one: the choices of later batches then draw their slots.
  void Stop();
  // The tables of kernels that split; null if no kernel splits.
  GpuSplitTables* gpu_tables() { return gpu_tables_.get(); }
  // Takes the sums of a layer's batches since the last call. No value: a batch drew its slots or is
  // still on the stream, or they are more than a kernel notes. Batches of a captured graph that the
  // stream has not reached count with the next call. placement: the one that is shown.
  std::optional<SplitSums> TakeSums(int32_t layer, const Placement& placement)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Logs the first refusal by a kernel that the host has not logged.
  void LogRefusal() ABSL_LOCKS_EXCLUDED(mutex_);
  SplitLoopFigures figures() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Layer {
    cuda::CountArgs choices = {};     // those of the last CountFor
    int32_t* chunk_counts = nullptr;  // [chunks of the largest batch, E]
    int64_t* own = nullptr;           // [S]
    int64_t* numbers = nullptr;       // [2], SplitExchangeArgs::number or SplitNoteArgs::counts
    cuda::SplitMailbox mailbox = {};  // if no kernel splits
    // If a kernel splits.
    int64_t* quotas = nullptr;   // [S]
    int32_t* refused = nullptr;  // [1], SplitArgs::refused
    int64_t* note = nullptr;     // pinned, see SplitNoteArgs
    bool is_counted = false;     // RouteFrom has not routed the choices
    int64_t answered = 0;        // number of the batch that the thread saw last
    int64_t launched = 0;        // batches of RouteFrom outside of a capture
    // Batches since the last TakeSums; mutex_ guards them.
    SplitSums sums = {};
    int64_t summed = 0;      // batches in `sums`
    int64_t taken = 0;       // batches up to the last TakeSums
    int64_t taken_late = 0;  // late batches up to the last TakeSums
  };

  SplitLoop(const SplitSetup& setup, const SplitLoopParts& parts);
  absl::Status Allocate();
  void CarveLayers(Carver& memory, Carver& shared);
  absl::Status CheckChoices(int32_t layer, const cuda::CountArgs& choices) const;
  cuda::QuotaRouteArgs RouteArgsOf(int32_t layer, void* slots);
  absl::Status Route(int32_t layer, const int64_t* gathered, void* slots, void* stream);
#ifdef EPLB_WITH_CUDA
  // Puts the computation of a layer's own quotas on the stream.
  absl::Status LaunchOwn(int32_t layer, const int64_t* gathered, cudaStream_t stream);
  absl::Status LaunchKernelSplit(int32_t layer, const int64_t* gathered, cudaStream_t stream);
#endif
  // Adds what kernels noted to the figures.
  void AddNotes(SplitLoopFigures& figures) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the entry of a batch in the layer's note (cuda::NoteEntry); empty if a later batch has
  // it. REQUIRES: the note has the batch.
  std::vector<int64_t> ReadNote(int32_t layer, int64_t batch) const;
  void AddSums(int32_t layer, std::span<const int64_t> quotas, const Placement& placement)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the own quotas of a batch, or kNoQuota if its counts are refused, or if a switch has
  // renewed the layer's tables since the batch. Returns the placement that split it, otherwise
  // null. tables: number of the batch's tables; no value: in host memory.
  std::shared_ptr<const Placement> Split(int32_t layer, std::span<const int64_t> gathered,
                                         std::span<int64_t> own, std::optional<int64_t> tables)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // ---- the thread ----
  void Run();
  void AnswerAll();
  // Answers the newest batch of a layer. False if there is none that is new.
  bool Answer(int32_t layer);

  const SplitSetup setup_;
  const SplitLoopParts parts_;
  const size_t num_counts_;  // number of counts of all ranks
  const size_t num_slots_;
  cuda::RowBuffer memory_;           // in the memory of the tables
  cuda::RowBuffer shared_;           // pinned
  int64_t* drawn_ = nullptr;         // [1], choices that drew their slots
  int64_t* out_of_range_ = nullptr;  // [1], read by nobody
  int64_t* number_ = nullptr;        // [1], see SplitNoteArgs
  std::vector<Layer> layers_;
  std::unique_ptr<GpuSplitTables> gpu_tables_;  // null unless kernels split
  mutable absl::Mutex mutex_;
  mutable SplitLoopFigures figures_ ABSL_GUARDED_BY(mutex_);
  bool has_logged_ ABSL_GUARDED_BY(mutex_) = false;          // a refusal
  mutable int64_t newest_note_ ABSL_GUARDED_BY(mutex_) = 0;  // number of the batch of `newest`
  std::vector<int64_t> counts_, quotas_, own_;  // the thread's, or of a call in host memory
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

}  // namespace eplb
