#include <cstring>
#include <map>
#include <new>

#include "absl/strings/str_cat.h"

#include "cuda/checksum.h"
#include "cuda/row_queue.h"

namespace eplb::cuda {
namespace {
constexpr std::align_val_t kAlignment{64};

class HostRowQueue : public RowQueue {
 public:
  absl::StatusOr<RowBuffer> Allocate(int64_t num_bytes) override {
    auto* p = static_cast<std::byte*>(
        ::operator new[](static_cast<size_t>(num_bytes) + 1, kAlignment, std::nothrow));
    if (p == nullptr) return absl::ResourceExhaustedError("no memory");
    return RowBuffer{.owner = {p, [](std::byte* q) { ::operator delete[](q, kAlignment); }},
                     .bytes = {p, static_cast<size_t>(num_bytes)}};
  }
  absl::Status Follow(void*) override { return absl::OkStatus(); }
  absl::Status LetFollow(void*) override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> Copy(std::span<const RowCopy> rows) override {
    if (sums_.size() >= kMaxBatches) return absl::ResourceExhaustedError("too many batches");
    std::vector<uint64_t> sums;
    for (const RowCopy& row : rows) {
      const auto size = static_cast<size_t>(row.num_bytes);
      sums.push_back(ChecksumOnHost({row.source, size}));
      if (row.destination != nullptr && size > 0) std::memcpy(row.destination, row.source, size);
    }
    sums_[++last_] = std::move(sums);
    return last_;
  }
  absl::StatusOr<int64_t> Transfer(const RowCopy& row) override {
    if (row.num_bytes > 0) {
      std::memcpy(row.destination, row.source, static_cast<size_t>(row.num_bytes));
    }
    return ++last_;
  }
  absl::StatusOr<int64_t> Mark() override { return ++last_; }
  absl::StatusOr<bool> Ended(int64_t) override { return true; }
  std::vector<uint64_t> TakeChecksums(int64_t batch) override {
    std::vector<uint64_t> sums = std::move(sums_[batch]);
    sums_.erase(batch);
    return sums;
  }
  void* stream() override { return nullptr; }

 private:
  std::map<int64_t, std::vector<uint64_t>> sums_;
  int64_t last_ = 0;
};
}  // namespace

std::unique_ptr<RowQueue> MakeHostRowQueue() { return std::make_unique<HostRowQueue>(); }

}  // namespace eplb::cuda
