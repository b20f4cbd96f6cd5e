// The placement as a GPU's kernels read it: arrays whose addresses stay for the life of the client,
// in the memory where the expert tensors lie. A captured graph goes on reading them; only a commit
// changes what they hold.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "client/rows/uploaded_memory.h"
#include "cuda/row_queue.h"
#include "placement/ids.h"
#include "placement/placement.h"

namespace eplb {

// Addresses in the queue's memory. Lists of experts follow each other: all experts of a layer
// together have S replicas, while a table [L, E, S - E + 1] takes 128 * 1024 * 1025 * 4 B = 537 MB
// where these take 6 MB.
struct RouteArrays {
  const int32_t* physical_to_logical = nullptr;  // [L, S], expert in each slot; -1: not in use
  const int32_t* replicas = nullptr;  // [L, S], slots expert by expert, the primary first
  // [L, E + 1], start of an expert in its row of `replicas`.
  const int32_t* first_replica = nullptr;
  const int32_t* replica_count = nullptr;  // [L, E]
  // A cuda::RouteTable of each layer, for the tokens of this GPU.
  const int32_t* candidates = nullptr;       // [L, S]
  const int32_t* first_candidate = nullptr;  // [L, E + 1]
  const uint32_t* thresholds = nullptr;      // [L, S]
  const int32_t* number = nullptr;           // [L], number of the update that wrote the layer
};

// Memory: L * (4 S + 3 E + 3) numbers of 4 bytes, once on the device and once pinned. Threads: the
// training thread.
class RouteTables {
 public:
  // Holds `placement` when it returns. errors: ResourceExhausted; Internal from CUDA.
  static absl::StatusOr<std::unique_ptr<RouteTables>> Make(std::unique_ptr<cuda::RowQueue> queue,
                                                           const Placement& placement, GpuId gpu);
  RouteTables(const RouteTables&) = delete;
  RouteTables& operator=(const RouteTables&) = delete;

  // Uploads these layers of `placement`, which has the shape of the first: after all that `stream`
  // holds now, before all that it gets later. Does not wait for the upload, but for the one before.
  // errors: DeadlineExceeded when that one has not ended; Internal from CUDA: what the layers hold
  // is not known.
  absl::Status Update(const Placement& placement, std::span<const LayerId> layers, void* stream);

  const RouteArrays& arrays() const { return arrays_; }
  // [L], RouteArrays::number of the newest updates, which may not have ended; in host memory,
  // stored atomically.
  const int32_t* newest_numbers() const { return PinnedRow(kNumber, LayerId{0}).data(); }
  // Allocates in the memory of the arrays; outlives what it allocates.
  cuda::RowQueue& queue() { return *queue_; }

 private:
  // One array: where its rows begin in both buffers, and how long a row is, in numbers.
  struct Part {
    int64_t begin = 0;
    int64_t row = 0;
  };
  enum PartName {
    kPhysicalToLogical,
    kReplicas,
    kFirstReplica,
    kReplicaCount,
    kCandidates,
    kFirstCandidate,
    kThresholds,
    kNumber,
    kNumParts
  };

  RouteTables(std::unique_ptr<cuda::RowQueue> queue, const Topology& topology, GpuId gpu);
  absl::Status Allocate();
  // Writes a layer into pinned memory. REQUIRES: the last upload has ended.
  absl::Status Write(const Placement& placement, LayerId layer);
  std::vector<UploadedMemory::Part> PartsOf(std::span<const LayerId> layers) const;
  std::span<int32_t> PinnedRow(PartName part, LayerId layer) const;
  const int32_t* DeviceArray(PartName part) const;

  const std::unique_ptr<cuda::RowQueue> queue_;
  const Topology topology_;
  const GpuId gpu_;
  std::vector<Part> parts_;
  int32_t num_updates_ = 0;
  int64_t num_numbers_ = 0;                 // numbers in a buffer
  std::unique_ptr<UploadedMemory> memory_;  // goes before the queue
  RouteArrays arrays_;
};

}  // namespace eplb
