#include "tests/gpu/nccl_rank.h"

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "cuda/nccl_communicator.h"
#include "cuda/nccl_library.h"
#include "cuda/runtime.h"
#include "tests/cuda/nccl_wait.h"

namespace eplb::cuda::testing {
namespace {

constexpr std::string_view kFlag = "--nccl-rank";
constexpr absl::Duration kLostPeerDeadline = absl::Seconds(20);
constexpr absl::Duration kAbortBound = absl::Seconds(30);
constexpr int64_t kLargestRow = 64 << 20;

// Time slices make a group last 4 to 17 ms whatever its size, so that these take about a second.
constexpr int32_t kGroups = 30;
size_t SizeOf(int32_t group) {
  constexpr size_t kSizes[] = {1, 15, 4096, 65537, 3 << 20, 16 << 20};
  return kSizes[static_cast<size_t>(group) % std::size(kSizes)];
}

absl::StatusOr<NcclId> ShareId(const NcclLibrary& library, const RankJob& job) {
  if (job.rank == 0) {
    EPLB_ASSIGN_OR_RETURN(const NcclId id, MakeNcclId(library));
    const std::string part = job.id_file + ".part";
    std::ofstream(part, std::ios::binary)
        .write(reinterpret_cast<const char*>(id.data()), id.size());
    std::filesystem::rename(part, job.id_file);  // no rank reads half of it
    return id;
  }
  for (const absl::Time deadline = absl::Now() + kPatience; absl::Now() < deadline;) {
    NcclId id;
    std::ifstream file(job.id_file, std::ios::binary);
    if (file.read(reinterpret_cast<char*>(id.data()), id.size())) return id;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return absl::DeadlineExceededError("rank 0 has written no id");
}

// A rank with a row to send and one to receive in device memory.
class DeviceRank {
 public:
  static absl::StatusOr<DeviceRank> Connect(const RankJob& job) {
    DeviceRank rank(job);
    EPLB_ASSIGN_OR_RETURN(rank.stream_, MakeStream());
    EPLB_ASSIGN_OR_RETURN(rank.source_, MakeDeviceMemory(kLargestRow));
    EPLB_ASSIGN_OR_RETURN(rank.target_, MakeDeviceMemory(kLargestRow));
    EPLB_ASSIGN_OR_RETURN(const NcclLibrary* library, NcclLibrary::Load());
    EPLB_ASSIGN_OR_RETURN(const NcclId id, ShareId(*library, job));
    EPLB_ASSIGN_OR_RETURN(
        rank.communicator_,
        NcclCommunicator::Begin(*library, id,
                                {.rank = job.rank, .num_ranks = job.num_ranks, .max_ctas = 4}));
    EPLB_RETURN_IF_ERROR(WaitUntilReady(*rank.communicator_));
    return rank;
  }

  int32_t next() const { return (job_.rank + 1) % job_.num_ranks; }
  int32_t before() const { return (job_.rank + job_.num_ranks - 1) % job_.num_ranks; }
  NcclCommunicator& communicator() { return *communicator_; }

  // Puts a row on its way; it is over when the stream is.
  absl::Status Send(const Bytes& row) {
    EPLB_RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(source_.get(), row.data(), row.size(),
                                                  cudaMemcpyHostToDevice, stream_.get()),
                                  "cudaMemcpyAsync"));
    EPLB_RETURN_IF_ERROR(
        ToStatus(cudaMemsetAsync(target_.get(), 0, row.size(), stream_.get()), "cudaMemsetAsync"));
    return communicator_->SendReceive(
        NcclSend{next(), {static_cast<const std::byte*>(source_.get()), row.size()}},
        NcclReceive{before(), {static_cast<std::byte*>(target_.get()), row.size()}}, stream_.get());
  }

  absl::Status WaitForStream(absl::Duration patience) {
    const absl::Time deadline = absl::Now() + patience;
    EPLB_RETURN_IF_ERROR(WaitUntilReady(*communicator_, patience));
    for (;;) {
      EPLB_RETURN_IF_ERROR(communicator_->Poll().status());
      const cudaError_t state = cudaStreamQuery(stream_.get());
      if (state != cudaErrorNotReady) return ToStatus(state, "cudaStreamQuery");
      if (absl::Now() > deadline) return absl::DeadlineExceededError("rows are still under way");
      absl::SleepFor(kPause);
    }
  }

  absl::StatusOr<Bytes> Received(size_t size) {
    Bytes row(size);
    EPLB_RETURN_IF_ERROR(ToStatus(
        cudaMemcpy(row.data(), target_.get(), size, cudaMemcpyDeviceToHost), "cudaMemcpy"));
    return row;
  }

  // No kernel of the communicator may be left.
  absl::Status AbortInTime() {
    const absl::Time begin = absl::Now();
    (void)communicator_->Abort();
    EPLB_RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize"));
    const absl::Duration taken = absl::Now() - begin;
    if (taken < kAbortBound) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat("abort took ", absl::FormatDuration(taken)));
  }

 private:
  explicit DeviceRank(RankJob job) : job_(std::move(job)) {}

  RankJob job_;
  Stream stream_;
  DeviceMemory source_;
  DeviceMemory target_;
  std::unique_ptr<NcclCommunicator> communicator_;  // goes before the memory that it writes to
};

absl::Status RunRing(const RankJob& job) {
  EPLB_ASSIGN_OR_RETURN(DeviceRank rank, DeviceRank::Connect(job));
  for (int32_t group = 0; group < kGroups; ++group) {
    const size_t size = SizeOf(group);
    EPLB_RETURN_IF_ERROR(rank.Send(RowOf(job.rank, rank.next(), group, size)));
    EPLB_RETURN_IF_ERROR(rank.WaitForStream(kPatience));
    EPLB_ASSIGN_OR_RETURN(const Bytes received, rank.Received(size));
    if (received != RowOf(rank.before(), job.rank, group, size)) {
      return absl::DataLossError(absl::StrCat("group ", group, " brought a wrong row"));
    }
  }
  return rank.AbortInTime();
}

absl::Status RunDuplicate(const RankJob& job) {
  const absl::Status refusal = DeviceRank::Connect(job).status();
  if (absl::StrContains(refusal.message(), "Duplicate GPU") ||
      absl::StrContains(refusal.message(), "invalid usage")) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("expected a refusal of the device, got ", refusal.ToString()));
}

absl::Status RunLosePeer(const RankJob& job) {
  EPLB_ASSIGN_OR_RETURN(DeviceRank rank, DeviceRank::Connect(job));
  const Bytes small = RowOf(job.rank, rank.next(), 0, 4096);
  EPLB_RETURN_IF_ERROR(rank.Send(small));
  EPLB_RETURN_IF_ERROR(rank.WaitForStream(kPatience));
  const Bytes large(kLargestRow, std::byte{1});
  EPLB_RETURN_IF_ERROR(rank.Send(large));
  if (job.rank == 1) (void)raise(SIGKILL);
  const absl::Status seen = rank.WaitForStream(kLostPeerDeadline);
  std::fprintf(stderr, "rank %d saw: %s\n", job.rank, seen.ToString().c_str());
  EPLB_RETURN_IF_ERROR(rank.AbortInTime());
  return seen.ok() ? absl::InternalError("a row arrived from a dead rank") : absl::OkStatus();
}

absl::Status Run(const RankJob& job) {
  switch (job.task) {
    case RankTask::kRing:
      return RunRing(job);
    case RankTask::kDuplicate:
      return RunDuplicate(job);
    case RankTask::kLosePeer:
      return RunLosePeer(job);
  }
  return absl::InvalidArgumentError("no such task");
}

}  // namespace

std::vector<std::string> ToArguments(const RankJob& job) {
  return {std::string(kFlag), absl::StrCat(static_cast<int32_t>(job.task)), absl::StrCat(job.rank),
          absl::StrCat(job.num_ranks), job.id_file};
}

std::optional<RankJob> FromArguments(int argc, char** argv) {
  RankJob job;
  int32_t task = 0;
  if (argc != 6 || argv[1] != kFlag || !absl::SimpleAtoi(argv[2], &task) ||
      !absl::SimpleAtoi(argv[3], &job.rank) || !absl::SimpleAtoi(argv[4], &job.num_ranks)) {
    return std::nullopt;
  }
  job.task = static_cast<RankTask>(task);
  job.id_file = argv[5];
  return job;
}

int RunRank(const RankJob& job) {
  const absl::Status result = Run(job);
  if (result.ok()) return 0;
  std::fprintf(stderr, "rank %d: %s\n", job.rank, result.ToString().c_str());
  return 1;
}

}  // namespace eplb::cuda::testing
