#include "tests/client/test_job.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "client/client_impl.h"
#include "client/options.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/paths/host_world.h"

namespace eplb {
namespace {

constexpr int32_t kLayers = 3;
constexpr int32_t kExperts = 4;
constexpr int64_t kRowBytes[] = {96, 40};  // weight, state
constexpr int64_t kStride = 104;

}  // namespace

ClientOptions TestOptions(int32_t rank, const std::string& endpoint) {
  ClientOptions options;
  options.job = "job";
  options.run_id = "run-0";
  options.rank = rank;
  options.world_size = kTestRanks;
  options.endpoint = endpoint;
  options.num_layers = kLayers;
  options.num_experts = kExperts;
  options.num_slots = kExperts;
  options.num_gpus = 2;
  options.vote_every = 4;
  options.report_every = 8;
  options.transport = "host";
  options.start_deadline = absl::Seconds(20);
  options.vote_deadline = absl::Seconds(20);
  options.transfer_deadline = absl::Seconds(10);
  return options;
}

TestRank::TestRank(std::unique_ptr<Client> client, const ClientOptions& options)
    : client_(std::move(client)), rank_(options.rank), grid_(GridOf(options).value()) {
  const auto slots = static_cast<size_t>(client_->placement().num_local_slots);
  memory_.assign(static_cast<size_t>(kLayers) * 2, std::vector<std::byte>(slots * kStride));
}

std::vector<ExpertTensorView> TestRank::Tensors() {
  std::vector<ExpertTensorView> tensors;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    if (!Holds(layer)) continue;
    for (size_t tensor = 0; tensor < 2; ++tensor) {
      ExpertTensorView view;
      view.name = absl::StrCat("layers.", layer, tensor == 0 ? ".w" : ".m");
      view.layer = layer;
      view.role = tensor == 0 ? Role::kWeight : Role::kState;
      view.base = memory_[static_cast<size_t>(layer) * 2 + tensor].data();
      view.num_rows = client_->placement().num_local_slots;
      view.row_bytes = kRowBytes[tensor];
      view.row_stride = kStride;
      tensors.push_back(view);
    }
  }
  return tensors;
}

std::byte TestRank::Expected(int32_t layer, int32_t local_slot, size_t tensor) const {
  const PlacementView& view = client_->row_placement();
  const int32_t index = layer * view.num_slots + view.first_local_slot + local_slot;
  const int32_t expert = view.physical_to_logical_map[static_cast<size_t>(index)];
  // The EP group is in the bytes: rows move only inside an EP group.
  return static_cast<std::byte>(1 + expert + 8 * layer + 32 * static_cast<int32_t>(tensor) +
                                64 * grid_.EpGroupOf(RankId{rank_}));
}

void TestRank::Fill() {
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (size_t tensor = 0; tensor < 2; ++tensor) {
      auto row = memory_[static_cast<size_t>(layer) * 2 + tensor].begin();
      for (int32_t slot = 0; slot < client_->placement().num_local_slots; ++slot, row += kStride) {
        std::fill(row, row + kRowBytes[tensor], Expected(layer, slot, tensor));
      }
    }
  }
}

uint64_t TestRank::BytesOf(int32_t layer, int32_t local_slot) const {
  std::string bytes;
  for (size_t tensor = 0; tensor < 2; ++tensor) {
    const std::vector<std::byte>& rows = memory_[static_cast<size_t>(layer) * 2 + tensor];
    bytes.append(reinterpret_cast<const char*>(rows.data()) + local_slot * kStride,
                 static_cast<size_t>(kRowBytes[tensor]));
  }
  return std::hash<std::string>()(bytes);
}

int TestRank::WrongSlots() const {
  int wrong = 0;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    if (!Holds(layer)) continue;
    for (size_t tensor = 0; tensor < 2; ++tensor) {
      auto row = memory_[static_cast<size_t>(layer) * 2 + tensor].begin();
      for (int32_t slot = 0; slot < client_->placement().num_local_slots; ++slot, row += kStride) {
        const std::byte expected = Expected(layer, slot, tensor);
        const auto is_expected = [&](std::byte b) { return b == expected; };
        const auto is_gap = [](std::byte b) { return b == std::byte{0}; };
        wrong += !std::all_of(row, row + kRowBytes[tensor], is_expected) ||
                         !std::all_of(row + kRowBytes[tensor], row + kStride, is_gap)
                     ? 1
                     : 0;
      }
    }
  }
  return wrong;
}

absl::StatusOr<BoundaryResult> TestRank::Step(int64_t step) {
  const std::vector<int64_t> counts(kExperts, 1);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    if (Holds(layer)) EPLB_RETURN_IF_ERROR(client_->Record(layer, counts));
  }
  return client_->StepBoundary(step);
}

absl::StatusOr<int64_t> TestRank::StepUntil(
    int64_t first, const std::function<bool(const BoundaryResult&)>& until) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int64_t step = first; std::chrono::steady_clock::now() < deadline; ++step) {
    EPLB_ASSIGN_OR_RETURN(const BoundaryResult result, Step(step));
    if (until(result)) return step;
  }
  return absl::DeadlineExceededError("it did not happen within 30 s");
}

TestJob::TestJob(const std::string& endpoint, const TestJobHooks& hooks) : ranks_(kTestRanks) {
  std::vector<AllGather> all_gathers = MakeThreadAllGathers(kTestRanks);
  Transports transports(kTestRanks);
  if (hooks.transport) transports = MakeSharedMemoryWorld(kTestRanks, 1 << 16);
  std::vector<absl::Status> statuses(kTestRanks);
  RunRanks(kTestRanks, [&](int32_t rank) {
    const auto i = static_cast<size_t>(rank);
    ClientOptions options = TestOptions(rank, endpoint);
    if (hooks.options) hooks.options(options);
    absl::StatusOr<ClientParts> parts = PrepareClient(options, all_gathers[i]);
    statuses[i] = parts.status();
    if (!parts.ok()) return;
    if (hooks.control) parts->control = hooks.control(rank, std::move(parts->control));
    if (hooks.transport) parts->transport = hooks.transport(rank, std::move(transports[i]));
    auto impl = std::make_unique<Client::Impl>(*std::move(parts));
    ranks_[i] = std::make_unique<TestRank>(std::make_unique<Client>(std::move(impl)), options);
    std::vector<ExpertTensorView> tensors = ranks_[i]->Tensors();
    if (hooks.tensors) hooks.tensors(*ranks_[i], tensors);
    statuses[i] = ranks_[i]->client().RegisterExperts(tensors);
    ranks_[i]->Fill();
  });
  for (const absl::Status& status : statuses) started_.Update(status);
}

void TestJob::Run(const std::function<void(int32_t rank, TestRank&)>& body) {
  RunRanks(kTestRanks, [&](int32_t r) { body(r, rank(r)); });
}

}  // namespace eplb
