#include <algorithm>
#include <bit>
#include <map>
#include <new>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/add_rows.h"
#include "cuda/copy.h"
#include "cuda/row_queue.h"
#include "cuda/square_rows.h"

namespace eplb::cuda {
namespace {

constexpr std::align_val_t kAlignment{64};

class HostRowQueue final : public RowQueue {
 public:
  absl::StatusOr<RowBuffer> Allocate(int64_t num_bytes) override {
    EPLB_RETURN_IF_ERROR(CheckBufferSize(num_bytes));
    const auto size = static_cast<size_t>(num_bytes);
    auto* bytes = static_cast<std::byte*>(::operator new(size, kAlignment, std::nothrow));
    if (bytes == nullptr) return ResourceExhausted("no memory for ", num_bytes, " bytes");
    return RowBuffer{.owner = {bytes, [](std::byte* b) { ::operator delete(b, kAlignment); }},
                     .bytes = {bytes, size}};
  }

  absl::StatusOr<RowBuffer> AllocatePinned(int64_t num_bytes) override {
    return Allocate(num_bytes);
  }

  absl::StatusOr<RowBuffer> Pin(std::span<std::byte> memory) override {
    return RowBuffer{.owner = nullptr, .bytes = memory};
  }

  absl::Status CheckStream(void* /*stream*/) override { return absl::OkStatus(); }
  absl::Status Follow(void* /*stream*/) override { return absl::OkStatus(); }
  absl::Status LetFollow(void* /*stream*/) override { return absl::OkStatus(); }

  absl::StatusOr<int64_t> Copy(std::span<const RowCopy> rows) override {
    EPLB_RETURN_IF_ERROR(CheckRowCopies(rows));
    EPLB_RETURN_IF_ERROR(CheckRoom(load_, static_cast<int64_t>(rows.size())));
    std::vector<uint64_t> checksums(rows.size());
    EPLB_RETURN_IF_ERROR(CopyRowsOnHost(rows, checksums));
    return Keep(std::move(checksums));
  }

  absl::StatusOr<int64_t> CopyUnsummed(std::span<const RowCopy> rows) override {
    EPLB_RETURN_IF_ERROR(CheckRoom(load_, static_cast<int64_t>(rows.size())));
    EPLB_RETURN_IF_ERROR(CopyRowsOnHost(rows, {}));
    return num_batches_++;
  }

  absl::StatusOr<int64_t> Transfer(std::span<const RowCopy> rows) override {
    EPLB_RETURN_IF_ERROR(CheckRoom(load_, 0));
    EPLB_RETURN_IF_ERROR(CopyRowsOnHost(rows, {}));
    return num_batches_++;
  }

  absl::StatusOr<int64_t> Add(std::span<const RowCopy> rows, ElementType type) override {
    EPLB_RETURN_IF_ERROR(CheckRoom(load_, static_cast<int64_t>(rows.size())));
    EPLB_RETURN_IF_ERROR(AddRowsOnHost(rows, type));
    return num_batches_++;
  }

  absl::StatusOr<int64_t> Square(std::span<const RowCopy> rows, ElementType type) override {
    EPLB_RETURN_IF_ERROR(CheckRoom(load_, static_cast<int64_t>(rows.size())));
    std::vector<double> sums(rows.size());
    EPLB_RETURN_IF_ERROR(SquareRowsOnHost(rows, type, sums));
    std::vector<uint64_t> bits(sums.size());
    std::transform(sums.begin(), sums.end(), bits.begin(),
                   [](double sum) { return std::bit_cast<uint64_t>(sum); });
    return Keep(std::move(bits));
  }

  absl::StatusOr<int64_t> Mark() override {
    EPLB_RETURN_IF_ERROR(CheckRoom(load_, 0));
    return num_batches_++;
  }

  absl::StatusOr<bool> Ended(int64_t batch) override {
    EPLB_RETURN_IF_ERROR(CheckAdded(batch, num_batches_));
    return true;
  }

  std::vector<uint64_t> TakeChecksums(int64_t batch) override {
    const auto found = checksums_.find(batch);
    if (found == checksums_.end()) return {};
    std::vector<uint64_t> checksums = std::move(found->second);
    --load_.num_batches;
    load_.num_rows -= static_cast<int64_t>(checksums.size());
    checksums_.erase(found);
    return checksums;
  }

  absl::Status Drain(absl::Time /*deadline*/) override {
    checksums_.clear();
    load_ = {};
    return absl::OkStatus();
  }

  void* stream() override { return nullptr; }

 private:
  // A batch with these results, until they are taken.
  int64_t Keep(std::vector<uint64_t> results) {
    if (!results.empty()) {
      ++load_.num_batches;
      load_.num_rows += static_cast<int64_t>(results.size());
      checksums_.emplace(num_batches_, std::move(results));
    }
    return num_batches_++;
  }

  int64_t num_batches_ = 0;
  RowQueueLoad load_;                                   // load of checksums_
  std::map<int64_t, std::vector<uint64_t>> checksums_;  // by batch, until they are taken
};

}  // namespace

std::unique_ptr<RowQueue> MakeHostRowQueue() { return std::make_unique<HostRowQueue>(); }

}  // namespace eplb::cuda
