// Row copies, sums and checksums in the order of a queue: by the CPU in host memory, or by kernels
// and the copy engine on a CUDA stream in device memory. What stands above it is written once for
// both.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "cuda/kernels/copy_body.h"
#include "cuda/kernels/element_body.h"

namespace eplb::cuda {

// Memory of a queue's device, freed with it.
struct RowBuffer {
  std::unique_ptr<std::byte, std::function<void(std::byte*)>> owner;
  std::span<std::byte> bytes;
};

// A batch is what one call added; batches end in the order they were added. Threads:
// one caller, which need not have the queue's device current. No call waits for the device, but
// for Allocate, Drain and the destructor. errors of all: Internal from CUDA. After an error of one
// that adds or asks, each such call returns it until Drain. The destructor waits at most 20 s for
// the device; memory that it may still use is then never freed.
class RowQueue {
 public:
  // Batches that are not finished, and finished ones whose checksums or squares were not taken. A
  // batch without rows and one of CopyUnsummed, Transfer, Add or Mark have none to take.
  static constexpr int32_t kMaxBatches = 64;
  // Most rows of these batches together.
  static constexpr int64_t kMaxRows = 65'536;

  virtual ~RowQueue() = default;

  // 64-byte aligned. errors: InvalidArgument for a negative size; ResourceExhausted.
  virtual absl::StatusOr<RowBuffer> Allocate(int64_t num_bytes) = 0;
  // Host memory that the copy engine reads and writes at its full speed. errors: as Allocate.
  virtual absl::StatusOr<RowBuffer> AllocatePinned(int64_t num_bytes) = 0;

  // Makes host memory of the caller's what AllocatePinned gives, for as long as the result lives,
  // which goes before the memory. errors: Internal from CUDA.
  virtual absl::StatusOr<RowBuffer> Pin(std::span<std::byte> memory) = 0;

  // Checks that Follow and LetFollow take `stream`: a cudaStream_t of this device, not under graph
  // capture; null is the default stream; the CPU ignores it. errors: FailedPrecondition. A capture
  // is not disturbed.
  virtual absl::Status CheckStream(void* stream) = 0;
  // Orders later additions after the present work of `stream`. errors: see CheckStream. After an
  // error the queue works on as before.
  virtual absl::Status Follow(void* stream) = 0;
  // Orders later work of `stream` after all additions. errors: see Follow.
  virtual absl::Status LetFollow(void* stream) = 0;

  // Copies rows and sums the checksum (ChecksumOnHost) of each source as it is read. Row tables are
  // copied before this returns. errors: InvalidArgument for a negative size or a null source of a
  // row with bytes; ResourceExhausted with kMaxBatches or kMaxRows under way; nothing is added
  // then.
  virtual absl::StatusOr<int64_t> Copy(std::span<const RowCopy> rows) = 0;
  // Copies rows without checksums, for rows whose sums are not needed; otherwise like Copy.
  virtual absl::StatusOr<int64_t> CopyUnsummed(std::span<const RowCopy> rows) = 0;
  // Copies rows by the copy engine, which takes no multiprocessor, also between device and host; no
  // checksums, so that rows which need them are read once more; nothing of a row without a
  // destination. errors: as Copy.
  virtual absl::StatusOr<int64_t> Transfer(std::span<const RowCopy> rows) = 0;
  // Adds each source to its destination, as AddRowsOnHost; no destination shares a byte with
  // another row of the batch. errors: as Copy; InvalidArgument for bytes that are no whole
  // elements.
  virtual absl::StatusOr<int64_t> Add(std::span<const RowCopy> rows, ElementType type) = 0;
  // Sums the squares of each source, as SquareRowsOnHost. errors: as Add.
  virtual absl::StatusOr<int64_t> Square(std::span<const RowCopy> rows, ElementType type) = 0;
  // A batch that ends once what the caller itself put on stream() up to here has run. errors:
  // ResourceExhausted as Copy.
  virtual absl::StatusOr<int64_t> Mark() = 0;

  // True if a batch has ended. errors: InvalidArgument for a batch that was never added.
  virtual absl::StatusOr<bool> Ended(int64_t batch) = 0;
  // The checksums of a batch that has ended, in the order of its rows; once, then none. REQUIRES:
  // it has, as Ended said.
  virtual std::vector<uint64_t> TakeChecksums(int64_t batch) = 0;
  // Takes the sums of a batch of Square, whose checksums are the sums' bits.
  std::vector<double> TakeSquares(int64_t batch) {
    std::vector<double> squares;
    for (const uint64_t bits : TakeChecksums(batch)) squares.push_back(std::bit_cast<double>(bits));
    return squares;
  }

  // Ends all that was added: returns when none of it can read or write any more, batches of Mark
  // apart. Batches have ended then, their checksums are forgotten, and the queue works again also
  // after an error of one call. errors: DeadlineExceeded; Internal when the device is lost.
  virtual absl::Status Drain(absl::Time deadline) = 0;

  // From now on calls of this thread, also on other queues, disturb no graph capture that another
  // thread has begun. For a thread that works beside the trainer's.
  virtual void AllowCaptures() {}

  // The cudaStream_t that the queue runs on, for NCCL; null on the CPU.
  virtual void* stream() = 0;
};

// Runs each batch as it is added.
std::unique_ptr<RowQueue> MakeHostRowQueue();

#ifdef EPLB_WITH_CUDA
struct StreamRowQueueOptions {
  int32_t device = 0;
  // Blocks of the copy kernel. A row copy reaches the memory's bandwidth with far fewer blocks than
  // the device has room for, and training runs beside it.
  int32_t max_blocks = 0;      // 0: as ChooseCopyGrid says
  bool high_priority = false;  // before the training's streams
};
// Takes 5.5 MiB of the device and 6 MiB of pinned memory for kMaxRows rows; later only Allocate
// takes more. A batch of up to 1024 rows puts four things on the stream: table, kernel, checksums,
// event; without checksums three, with squares five. One of more rows repeats all but the event.
// errors: FailedPrecondition when there is no such usable device; ResourceExhausted.
absl::StatusOr<std::unique_ptr<RowQueue>> MakeStreamRowQueue(const StreamRowQueueOptions& options);
#endif

// Checks that both row queues share, with the same messages.

// Content of a queue: batches that have not ended or have checksums that were not taken.
struct RowQueueLoad {
  int64_t num_batches = 0;
  int64_t num_rows = 0;  // rows of these batches
};

// errors: ResourceExhausted when another batch of `num_rows` rows is above what a queue holds.
absl::Status CheckRoom(const RowQueueLoad& load, int64_t num_rows);
// errors: InvalidArgument when `batch` is none of the num_batches that were added.
absl::Status CheckAdded(int64_t batch, int64_t num_batches);
// errors: InvalidArgument when a buffer would have less than 0 bytes.
absl::Status CheckBufferSize(int64_t num_bytes);

}  // namespace eplb::cuda
