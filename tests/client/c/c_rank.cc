#include "tests/client/c/c_rank.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "tests/client/rows/control/world.h"

namespace eplb {

int32_t RunAllGather(void* all_gather, const void* bytes, size_t num_bytes, eplb_answers* answers) {
  const auto blobs = (*static_cast<AllGather*>(all_gather))(
      std::string_view(static_cast<const char*>(bytes), num_bytes));
  if (!blobs.ok()) {
    eplb_callback_message(std::string(blobs.status().message()).c_str());
    return static_cast<int32_t>(blobs.status().code());
  }
  for (const std::string& blob : *blobs) eplb_answers_add(answers, blob.data(), blob.size());
  return EPLB_OK;
}

eplb_client_options SmallOptions(int32_t rank, int32_t world_size) {
  eplb_client_options options;
  (void)eplb_client_options_init(&options, sizeof(options));
  options.job = "job";
  options.run_id = "run-0";
  options.transport = "host";
  options.rank = rank;
  options.world_size = world_size;
  options.num_layers = kSmallLayers;
  options.num_experts = kSmallExperts;
  options.num_slots = kSmallExperts;
  options.num_gpus = std::min(world_size, 2);
  options.vote_every = 4;
  options.report_every = 8;
  options.start_deadline_s = 20;
  options.vote_deadline_s = 20;
  options.transfer_deadline_s = 10;
  return options;
}

CRank::CRank(int32_t rank, int32_t world_size, AllGather all_gather)
    : options(SmallOptions(rank, world_size)), rank_(rank), all_gather_(std::move(all_gather)) {
  (void)eplb_client_create(&client_);
}

int32_t CRank::Connect() {
  return eplb_client_connect(client_, &options, &RunAllGather, &all_gather_);
}

eplb_placement CRank::Placement() {
  eplb_placement placement;
  placement.struct_size = sizeof(placement);
  (void)eplb_client_placement(client_, &placement);
  return placement;
}

std::byte CRank::Expected(int32_t layer, int32_t local_slot) {
  const eplb_placement placement = Placement();
  const int32_t expert = placement.physical_to_logical_map[layer * placement.num_slots +
                                                           placement.first_local_slot + local_slot];
  // The EP group is in the bytes: rows move only inside an EP group.
  return static_cast<std::byte>(1 + expert + 8 * layer + 64 * (rank_ / 2));
}

std::vector<eplb_tensor> CRank::MakeTensors() {
  const auto num_rows = Placement().num_local_slots;
  names_.clear();
  memory_.assign(kSmallLayers, std::vector<std::byte>(static_cast<size_t>(num_rows) *
                                                      static_cast<size_t>(kSmallRowBytes)));
  for (int32_t layer = 0; layer < kSmallLayers; ++layer) {
    names_.push_back(absl::StrCat("layers.", layer, ".w"));
  }
  std::vector<eplb_tensor> tensors;
  for (int32_t layer = 0; layer < kSmallLayers; ++layer) {
    std::vector<std::byte>& rows = memory_[static_cast<size_t>(layer)];
    for (int32_t slot = 0; slot < num_rows; ++slot) {
      std::fill_n(rows.begin() + slot * kSmallRowBytes, kSmallRowBytes, Expected(layer, slot));
    }
    eplb_tensor tensor = {};
    tensor.struct_size = sizeof(tensor);
    tensor.name = names_[static_cast<size_t>(layer)].c_str();
    tensor.layer = layer;
    tensor.role = EPLB_WEIGHT;
    tensor.base = rows.data();
    tensor.num_rows = num_rows;
    tensor.row_bytes = kSmallRowBytes;
    tensor.row_stride = kSmallRowBytes;
    tensors.push_back(tensor);
  }
  return tensors;
}

int32_t CRank::Register(const std::vector<eplb_tensor>& tensors) {
  return eplb_client_register_experts(client_, tensors.data(), tensors.size());
}

int32_t CRank::Record() {
  const std::vector<int64_t> counts(kSmallExperts, 1);
  for (int32_t layer = 0; layer < kSmallLayers; ++layer) {
    const int32_t code = eplb_client_record(client_, layer, counts.data(), counts.size());
    if (code != EPLB_OK) return code;
  }
  return EPLB_OK;
}

int32_t CRank::Step(int64_t step, eplb_boundary* boundary) {
  const int32_t code = Record();
  return code != EPLB_OK ? code : eplb_client_step_boundary(client_, step, nullptr, boundary);
}

int64_t CRank::StepUntil(int64_t first, const std::function<bool(const eplb_boundary&)>& until) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int64_t step = first; std::chrono::steady_clock::now() < deadline; ++step) {
    eplb_boundary boundary;
    boundary.struct_size = sizeof(boundary);
    if (Step(step, &boundary) != EPLB_OK) return -1;
    if (until(boundary)) return step;
  }
  return -1;
}

int CRank::WrongSlots() {
  int wrong = 0;
  const int32_t num_rows = Placement().num_local_slots;
  for (int32_t layer = 0; layer < kSmallLayers; ++layer) {
    auto row = memory_[static_cast<size_t>(layer)].begin();
    for (int32_t slot = 0; slot < num_rows; ++slot, row += kSmallRowBytes) {
      const std::byte expected = Expected(layer, slot);
      const bool right =
          std::all_of(row, row + kSmallRowBytes, [&](std::byte byte) { return byte == expected; });
      wrong += right ? 0 : 1;
    }
  }
  return wrong;
}

CJob::CJob(int32_t world_size) {
  std::vector<AllGather> all_gathers = MakeThreadAllGathers(world_size);
  for (int32_t rank = 0; rank < world_size; ++rank) {
    ranks_.push_back(std::make_unique<CRank>(rank, world_size,
                                             std::move(all_gathers[static_cast<size_t>(rank)])));
  }
}

void CJob::Run(const std::function<void(CRank&)>& body) {
  RunRanks(static_cast<int32_t>(ranks_.size()), [&](int32_t r) { body(rank(r)); });
}

int32_t CJob::Start() {
  std::vector<int32_t> codes(ranks_.size(), EPLB_OK);
  Run([&](CRank& rank) {
    int32_t& code = codes[static_cast<size_t>(rank.rank())];
    code = rank.Connect();
    if (code == EPLB_OK) code = rank.Register(rank.MakeTensors());
  });
  const auto failed = std::find_if(codes.begin(), codes.end(), [](int32_t c) { return c != 0; });
  return failed == codes.end() ? EPLB_OK : *failed;
}

}  // namespace eplb
