#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/time/clock.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "cuda/add_rows.h"
#include "cuda/copy.h"
#include "cuda/row_queue.h"
#include "cuda/runtime.h"
#include "cuda/square_rows.h"

namespace eplb::cuda {
namespace {

constexpr int64_t kTableRows = 1024;  // table rows of one launch
// Enough for any kMaxBatches batches of kMaxRows rows: each leaves at most one table part empty.
constexpr int32_t kNumTables = RowQueue::kMaxBatches + RowQueue::kMaxRows / kTableRows;

// Deadline of the destructor. Copies take milliseconds; a device that needs longer does not answer.
constexpr absl::Duration kIdleTimeout = absl::Seconds(20);

constexpr int64_t TableBytes(int64_t num_rows) {
  return num_rows * static_cast<int64_t>(sizeof(TiledRow) + sizeof(uint64_t));
}

// One launch's rows with a checksum each, behind the last row: so one copy brings rows and zeros.
class Table {
 public:
  TiledRow* rows() { return reinterpret_cast<TiledRow*>(bytes_.data()); }
  // Or the squares.
  uint64_t* checksums(int64_t num_rows) { return reinterpret_cast<uint64_t*>(rows() + num_rows); }

 private:
  alignas(TiledRow) std::array<std::byte, TableBytes(kTableRows)> bytes_;
};
static_assert(sizeof(TiledRow) % alignof(uint64_t) == 0);

// In pinned memory. Results have a place of their own: what comes back must not meet the zeros that
// are still to be read.
struct HostTable {
  Table table;
  std::array<uint64_t, kTableRows> results;
};

struct Batch {
  Event ended;  // null once it has
  std::vector<int32_t> tables;
  int64_t num_rows = 0;
  bool has_checksums = false;  // or squares, to be taken
  bool is_mark = false;
};

// Frees what the queue gave, on any thread.
template <class Owner>
struct FreeAs {
  void operator()(std::byte* memory) const {
    const absl::StatusOr<DeviceGuard> guard = DeviceGuard::Make(device);
    const Owner owner(memory);
  }
  int32_t device;
};

cudaStream_t ToStream(void* stream) { return static_cast<cudaStream_t>(stream); }

class StreamRowQueue final : public RowQueue {
 public:
  explicit StreamRowQueue(const StreamRowQueueOptions& options) : options_(options) {}

  ~StreamRowQueue() override {
    absl::StatusOr<DeviceGuard> guard = DeviceGuard::Make(options_.device);
    if (guard.ok()) closing_.emplace(*std::move(guard));
    // The device still reads the tables.
    const absl::Time deadline = MonotonicNow() + kIdleTimeout;
    if (stream_ == nullptr || !absl::IsDeadlineExceeded(AwaitIdle(deadline))) return;
    (void)pinned_.release();  // to free them would wait for what does not end
    (void)device_.release();
    (void)square_parts_.release();
  }

  // REQUIRES: the queue's device is current.
  absl::Status Init() {
    const auto priority =
        options_.high_priority ? StreamPriority::kHighest : StreamPriority::kDefault;
    EPLB_ASSIGN_OR_RETURN(stream_, MakeStream(priority));
    EPLB_ASSIGN_OR_RETURN(hand_over_, MakeEvent());
    EPLB_RETURN_IF_ERROR(LoadCopyKernels());
    EPLB_RETURN_IF_ERROR(LoadAddKernels());
    EPLB_RETURN_IF_ERROR(LoadSquareKernels());
    EPLB_ASSIGN_OR_RETURN(pinned_,
                          MakePinnedMemory(static_cast<int64_t>(kNumTables * sizeof(HostTable))));
    EPLB_ASSIGN_OR_RETURN(device_,
                          MakeDeviceMemory(static_cast<int64_t>(kNumTables * sizeof(Table))));
    constexpr auto kPartBytes = static_cast<int64_t>(sizeof(double));
    EPLB_ASSIGN_OR_RETURN(square_parts_,
                          MakeDeviceMemory(NumSquareScratch(kTableRows) * kPartBytes));
    for (int32_t table = 0; table < kNumTables; ++table) free_tables_.push_back(table);
    for (int32_t i = 0; i < kMaxBatches; ++i) {
      EPLB_ASSIGN_OR_RETURN(Event event, MakeEvent());
      free_events_.push_back(std::move(event));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RowBuffer> Allocate(int64_t num_bytes) override {
    EPLB_RETURN_IF_ERROR(CheckBufferSize(num_bytes));
    EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(options_.device));
    EPLB_ASSIGN_OR_RETURN(DeviceMemory memory, MakeDeviceMemory(num_bytes));
    auto* bytes = static_cast<std::byte*>(memory.release());
    return RowBuffer{.owner = {bytes, FreeAs<DeviceMemory>{options_.device}},
                     .bytes = {bytes, static_cast<size_t>(num_bytes)}};
  }

  absl::StatusOr<RowBuffer> AllocatePinned(int64_t num_bytes) override {
    EPLB_RETURN_IF_ERROR(CheckBufferSize(num_bytes));
    EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(options_.device));
    EPLB_ASSIGN_OR_RETURN(PinnedMemory memory, MakePinnedMemory(std::max<int64_t>(num_bytes, 1)));
    auto* bytes = static_cast<std::byte*>(memory.release());
    return RowBuffer{.owner = {bytes, FreeAs<PinnedMemory>{options_.device}},
                     .bytes = {bytes, static_cast<size_t>(num_bytes)}};
  }

  absl::StatusOr<RowBuffer> Pin(std::span<std::byte> memory) override {
    if (memory.empty()) return RowBuffer{.owner = nullptr, .bytes = memory};
    EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(options_.device));
    EPLB_ASSIGN_OR_RETURN(PinnedRange range, PinRange(memory));
    auto* bytes = static_cast<std::byte*>(range.release());
    return RowBuffer{.owner = {bytes, FreeAs<PinnedRange>{options_.device}}, .bytes = memory};
  }

  absl::Status CheckStream(void* stream) override {
    EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(options_.device));
    EPLB_RETURN_IF_ERROR(CheckNotCapturing(ToStream(stream)));
    return RecordOn(ToStream(stream));
  }

  absl::Status Follow(void* stream) override {
    EPLB_RETURN_IF_ERROR(failure_);
    EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(options_.device));
    EPLB_RETURN_IF_ERROR(CheckStream(stream));
    return MakeWait(stream_.get());
  }

  absl::Status LetFollow(void* stream) override {
    EPLB_RETURN_IF_ERROR(failure_);
    EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(options_.device));
    EPLB_RETURN_IF_ERROR(CheckNotCapturing(ToStream(stream)));
    EPLB_RETURN_IF_ERROR(RecordOn(stream_.get()));
    return MakeWait(ToStream(stream));
  }

  absl::StatusOr<int64_t> Copy(std::span<const RowCopy> rows) override {
    return AddCopies(rows, /*has_checksums=*/true);
  }

  absl::StatusOr<int64_t> CopyUnsummed(std::span<const RowCopy> rows) override {
    return AddCopies(rows, /*has_checksums=*/false);
  }

  absl::StatusOr<int64_t> Transfer(std::span<const RowCopy> rows) override {
    EPLB_RETURN_IF_ERROR(CheckRowCopies(rows));
    EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(options_.device));
    EPLB_RETURN_IF_ERROR(MakeRoom(0));
    for (const RowCopy& row : rows) {
      if (row.num_bytes == 0 || row.destination == nullptr) continue;
      EPLB_RETURN_IF_ERROR(Keep(
          ToStatus(cudaMemcpyAsync(row.destination, row.source, static_cast<size_t>(row.num_bytes),
                                   cudaMemcpyDefault, stream_.get()),
                   "cudaMemcpyAsync of a row")));
    }
    return AddBatch({});
  }

  absl::StatusOr<int64_t> Add(std::span<const RowCopy> rows, ElementType type) override {
    EPLB_RETURN_IF_ERROR(CheckRowAdditions(rows, type));
    return AddTables(
        rows, /*has_checksums=*/false,
        [this, type](Table& table, int32_t num_rows, int64_t num_tiles) {
          return LaunchAddRows(
              {.rows = table.rows(), .num_rows = num_rows, .num_tiles = num_tiles, .type = type},
              options_.max_blocks, stream_.get());
        });
  }

  absl::StatusOr<int64_t> Square(std::span<const RowCopy> rows, ElementType type) override {
    EPLB_RETURN_IF_ERROR(CheckElements("squares", rows, type));
    return AddTables(rows, /*has_checksums=*/true,
                     [this, type](Table& table, int32_t num_rows, int64_t /*num_tiles*/) {
                       auto* sums = reinterpret_cast<double*>(table.checksums(num_rows));
                       return LaunchSquareRows({.rows = table.rows(),
                                                .num_rows = num_rows,
                                                .parts = static_cast<double*>(square_parts_.get()),
                                                .sums = sums,
                                                .type = type},
                                               stream_.get());
                     });
  }

  absl::StatusOr<int64_t> Mark() override {
    EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(options_.device));
    EPLB_RETURN_IF_ERROR(MakeRoom(0));
    return AddBatch({.is_mark = true});
  }

  absl::StatusOr<bool> Ended(int64_t batch) override {
    EPLB_RETURN_IF_ERROR(CheckAdded(batch, num_batches_));
    EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(options_.device));
    EPLB_RETURN_IF_ERROR(Poll());
    return batch < num_ended_;
  }

  std::vector<uint64_t> TakeChecksums(int64_t batch) override {
    const auto found = batches_.find(batch);
    if (batch >= num_ended_ || found == batches_.end()) return {};
    std::vector<uint64_t> checksums;
    int64_t left = found->second.num_rows;
    for (const int32_t table : found->second.tables) {
      const auto& values = OnHost(table).results;
      checksums.insert(checksums.end(), values.begin(),
                       values.begin() + std::min(left, kTableRows));
      left -= kTableRows;
    }
    Forget(found);
    return checksums;
  }

  absl::Status Drain(absl::Time deadline) override {
    EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(options_.device));
    // Work that was added in part has no event, so after an error the stream itself is asked.
    if (!AwaitWork(deadline).ok()) EPLB_RETURN_IF_ERROR(AwaitIdle(deadline));
    for (auto& [number, batch] : batches_) {
      if (batch.ended != nullptr) free_events_.push_back(std::move(batch.ended));
    }
    batches_.clear();
    load_ = {};
    num_ended_ = num_batches_;
    free_tables_.resize(kNumTables);
    std::iota(free_tables_.begin(), free_tables_.end(), 0);
    failure_ = absl::OkStatus();
    return absl::OkStatus();
  }

  // Without this mode a question about an event would end the capture, as CUDA takes it for a
  // mistake.
  void AllowCaptures() override {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
  }

  void* stream() override { return stream_.get(); }

 private:
  using Batches = std::map<int64_t, Batch>;

  // Until all batches but marks have ended. errors: DeadlineExceeded; the queue's.
  absl::Status AwaitWork(absl::Time deadline) {
    while (true) {
      EPLB_RETURN_IF_ERROR(Poll());
      if (num_ended_ >= num_worked_) return absl::OkStatus();
      EPLB_RETURN_IF_ERROR(SleepBefore(deadline));
    }
  }

  // errors: DeadlineExceeded; Internal when the device is lost.
  absl::Status AwaitIdle(absl::Time deadline) {
    while (true) {
      const cudaError_t state = cudaStreamQuery(stream_.get());
      if (state != cudaErrorNotReady) return ToStatus(state, "cudaStreamQuery");
      (void)cudaGetLastError();  // otherwise the next launch would find it
      EPLB_RETURN_IF_ERROR(SleepBefore(deadline));
    }
  }

  static absl::Status SleepBefore(absl::Time deadline) {
    constexpr absl::Duration kBetweenLooks = absl::Microseconds(20);
    if (MonotonicNow() >= deadline) {
      return DeadlineExceeded("row copies have not ended before the deadline");
    }
    absl::SleepFor(kBetweenLooks);
    return absl::OkStatus();
  }

  HostTable& OnHost(int32_t table) { return static_cast<HostTable*>(pinned_.get())[table]; }
  Table& OnDevice(int32_t table) { return static_cast<Table*>(device_.get())[table]; }

  // Work that was added in part cannot be undone, so after an error of CUDA all calls return that
  // error until Drain.
  absl::Status Keep(absl::Status status) {
    if (failure_.ok()) failure_ = std::move(status);
    return failure_;
  }

  // To record on a stream under capture would draw our own into the capture.
  absl::Status CheckNotCapturing(cudaStream_t stream) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(stream, &status);
    if (error == cudaErrorStreamCaptureImplicit || status != cudaStreamCaptureStatusNone) {
      (void)cudaGetLastError();
      return FailedPrecondition("the stream is under graph capture; end the capture first");
    }
    return CheckGiven(error, "cudaStreamIsCapturing");
  }

  absl::Status RecordOn(cudaStream_t stream) {
    return CheckGiven(cudaEventRecord(hand_over_.get(), stream), "cudaEventRecord");
  }

  // The wait is for what was recorded now: the event can be recorded again at once.
  absl::Status MakeWait(cudaStream_t stream) {
    return ToStatus(cudaStreamWaitEvent(stream, hand_over_.get(), 0), "cudaStreamWaitEvent");
  }

  // Checks the result of a call on the caller's stream.
  absl::Status CheckGiven(cudaError_t error, std::string_view what) const {
    const absl::Status status = ToStatus(error, what);
    if (error != cudaErrorInvalidResourceHandle) return status;
    return FailedPrecondition("the stream is not one of device ", options_.device, ": ",
                              status.message());
  }

  absl::StatusOr<int64_t> AddCopies(std::span<const RowCopy> rows, bool has_checksums) {
    EPLB_RETURN_IF_ERROR(CheckRowCopies(rows));
    return AddTables(rows, has_checksums,
                     [this, has_checksums](Table& table, int32_t num_rows, int64_t num_tiles) {
                       return LaunchCopyRows(
                           {.rows = table.rows(),
                            .num_rows = num_rows,
                            .num_tiles = num_tiles,
                            .checksums = has_checksums ? table.checksums(num_rows) : nullptr,
                            .checksums_are_zero = true},
                           options_.max_blocks, stream_.get());
                     });
  }

  // A batch of as many tables as the rows need. launch: (table on the device, its rows, its tiles).
  template <class Launch>
  absl::StatusOr<int64_t> AddTables(std::span<const RowCopy> rows, bool has_checksums,
                                    const Launch& launch) {
    EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(options_.device));
    EPLB_RETURN_IF_ERROR(MakeRoom(static_cast<int64_t>(rows.size())));
    Batch batch{.num_rows = static_cast<int64_t>(rows.size()),
                .has_checksums = has_checksums && !rows.empty()};
    while (!rows.empty()) {
      const std::span part = rows.first(std::min(rows.size(), size_t{kTableRows}));
      batch.tables.push_back(free_tables_.back());
      free_tables_.pop_back();
      EPLB_RETURN_IF_ERROR(Keep(Enqueue(part, batch.tables.back(), has_checksums, launch)));
      rows = rows.subspan(part.size());
    }
    return AddBatch(std::move(batch));
  }

  // Table there, with zeros where there are checksums; kernel; checksums back.
  template <class Launch>
  absl::Status Enqueue(std::span<const RowCopy> rows, int32_t table, bool has_checksums,
                       const Launch& launch) {
    HostTable& host = OnHost(table);
    Table& device = OnDevice(table);
    const std::span<TiledRow> tiled(host.table.rows(), rows.size());
    const int64_t num_tiles = TileRows(rows, tiled);
    size_t num_bytes = tiled.size_bytes();
    if (has_checksums) {
      std::fill_n(host.table.checksums(std::ssize(rows)), rows.size(), 0);
      num_bytes = static_cast<size_t>(TableBytes(std::ssize(rows)));
    }
    EPLB_RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(device.rows(), tiled.data(), num_bytes,
                                                  cudaMemcpyHostToDevice, stream_.get()),
                                  "cudaMemcpyAsync of a row table"));
    EPLB_RETURN_IF_ERROR(launch(device, static_cast<int32_t>(rows.size()), num_tiles));
    if (!has_checksums) return absl::OkStatus();
    return ToStatus(
        cudaMemcpyAsync(host.results.data(), device.checksums(std::ssize(rows)),
                        rows.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost, stream_.get()),
        "cudaMemcpyAsync of checksums");
  }

  // REQUIRES: MakeRoom was ok, so that there is an event.
  absl::StatusOr<int64_t> AddBatch(Batch batch) {
    EPLB_RETURN_IF_ERROR(Keep(
        ToStatus(cudaEventRecord(free_events_.back().get(), stream_.get()), "cudaEventRecord")));
    batch.ended = std::move(free_events_.back());
    free_events_.pop_back();
    if (!batch.is_mark) num_worked_ = num_batches_ + 1;
    ++load_.num_batches;
    load_.num_rows += batch.num_rows;
    batches_.emplace(num_batches_, std::move(batch));
    return num_batches_++;
  }

  absl::Status MakeRoom(int64_t num_rows) {
    EPLB_RETURN_IF_ERROR(Poll());
    return CheckRoom(load_, num_rows);
  }

  // Looks which batches have ended; they do so in order.
  absl::Status Poll() {
    EPLB_RETURN_IF_ERROR(failure_);
    for (; num_ended_ < num_batches_; ++num_ended_) {
      const auto next = batches_.find(num_ended_);
      const cudaError_t state = cudaEventQuery(next->second.ended.get());
      if (state == cudaErrorNotReady) {
        (void)cudaGetLastError();  // otherwise the next launch would find it
        return absl::OkStatus();
      }
      EPLB_RETURN_IF_ERROR(Keep(ToStatus(state, "cudaEventQuery")));
      free_events_.push_back(std::move(next->second.ended));
      if (!next->second.has_checksums) Forget(next);
    }
    return absl::OkStatus();
  }

  void Forget(Batches::iterator batch) {
    --load_.num_batches;
    load_.num_rows -= batch->second.num_rows;
    const std::vector<int32_t>& tables = batch->second.tables;
    free_tables_.insert(free_tables_.end(), tables.begin(), tables.end());
    batches_.erase(batch);
  }

  const StreamRowQueueOptions options_;
  std::optional<DeviceGuard> closing_;  // while what follows is freed
  Stream stream_;
  Event hand_over_;
  PinnedMemory pinned_;        // [kNumTables] HostTable
  DeviceMemory device_;        // [kNumTables] Table
  DeviceMemory square_parts_;  // parts of the running launch: one stream has one at a time
  std::vector<int32_t> free_tables_;
  std::vector<Event> free_events_;
  int64_t num_batches_ = 0;  // added so far
  int64_t num_ended_ = 0;    // ended batches, the first of num_batches_
  int64_t num_worked_ = 0;   // batches up to the last one that is no mark
  Batches batches_;          // batches that have not ended or have checksums that were not taken
  RowQueueLoad load_;        // load of batches_
  absl::Status failure_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowQueue>> MakeStreamRowQueue(const StreamRowQueueOptions& options) {
  int num_devices = 0;
  EPLB_RETURN_IF_ERROR(ToStatus(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount"));
  if (options.device < 0 || options.device >= num_devices) {
    return FailedPrecondition("there is no CUDA device ", options.device, ", but ", num_devices);
  }
  EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(options.device));
  auto queue = std::make_unique<StreamRowQueue>(options);
  EPLB_RETURN_IF_ERROR(queue->Init());
  return queue;
}

}  // namespace eplb::cuda
