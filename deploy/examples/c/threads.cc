// EPLB from C++, without a daemon: ranks that are threads agree on a start through an all-gather of
// their own, train under votes, and plan a better placement offline.
#include <eplb.h>
#include <eplb_plan.h>

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int32_t kRanks = 2;
constexpr int32_t kExperts = 8;

struct Delete {
  void operator()(eplb_client* client) const { eplb_client_destroy(client); }
  void operator()(eplb_plan* plan) const { eplb_plan_destroy(plan); }
};

void Must(int32_t code, const eplb_client* client = nullptr) {
  if (code == EPLB_OK) return;
  std::fprintf(stderr, "threads: %s: %s\n", eplb_code_name(code), eplb_client_message(client));
  std::exit(1);
}

// Stands for MPI_Allgather or a torch store of a real job.
struct Meeting {
  std::vector<std::string> blobs = std::vector<std::string>(kRanks);
  std::barrier<> all_here{kRanks};
};
struct Seat {
  Meeting* meeting;
  size_t rank;
};
int32_t AllGather(void* user, const void* bytes, size_t num_bytes, eplb_answers* answers) {
  auto& [meeting, rank] = *static_cast<Seat*>(user);
  meeting->blobs[rank].assign(static_cast<const char*>(bytes), num_bytes);
  meeting->all_here.arrive_and_wait();
  for (const std::string& blob : meeting->blobs) {
    Must(eplb_answers_add(answers, blob.data(), blob.size()));
  }
  meeting->all_here.arrive_and_wait();  // no rank writes before all have read
  return EPLB_OK;
}

void RunRank(Meeting& meeting, int32_t rank, const std::vector<int64_t>& counts) {
  eplb_client* raw = nullptr;
  Must(eplb_client_create(&raw));
  const std::unique_ptr<eplb_client, Delete> client(raw);
  eplb_client_options options;
  Must(eplb_client_options_init(&options, sizeof(options)));
  options.rank = rank;
  options.world_size = options.num_gpus = kRanks;
  options.num_layers = 1;
  options.num_experts = options.num_slots = kExperts;
  Seat seat{&meeting, static_cast<size_t>(rank)};
  Must(eplb_client_connect(raw, &options, &AllGather, &seat), raw);
  std::vector<float> weights(kExperts / kRanks * 64);
  eplb_tensor tensor = {};
  tensor.struct_size = sizeof(tensor);
  tensor.name = "experts.weight";
  tensor.base = weights.data();
  tensor.num_rows = kExperts / kRanks;
  tensor.row_bytes = tensor.row_stride = 64 * sizeof(float);
  Must(eplb_client_register_experts(raw, &tensor, 1), raw);
  for (int64_t step = 0; step < 32; ++step) {
    Must(eplb_client_record(raw, 0, counts.data(), counts.size()), raw);
    Must(eplb_client_step_boundary(raw, step, nullptr, nullptr), raw);
  }
  Must(eplb_client_close(raw, "finished"), raw);
}

}  // namespace

int main() {
  const std::vector<int64_t> counts = {90, 80, 70, 60, 10, 20, 30, 40};
  Meeting meeting;
  std::vector<std::thread> ranks;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] { RunRank(meeting, rank, counts); });
  }
  for (std::thread& rank : ranks) rank.join();

  eplb_plan_options options;
  Must(eplb_plan_options_init(&options, sizeof(options)));
  options.num_layers = 1;
  options.num_experts = options.num_slots = kExperts;
  options.num_gpus = kRanks;
  eplb_plan* raw = nullptr;
  Must(eplb_plan_from_counts(&options, counts.data(), &raw));
  const std::unique_ptr<eplb_plan, Delete> plan(raw);
  std::vector<int64_t> slots(kExperts);
  double balancedness = 0;
  Must(eplb_plan_copy_maps(plan.get(), slots.data(), nullptr, nullptr));
  Must(eplb_plan_copy_figures(plan.get(), &balancedness, nullptr));
  std::printf("balancedness %.3f with experts", balancedness);
  for (const int64_t expert : slots) std::printf(" %d", static_cast<int>(expert));
  std::printf("\n");
  return balancedness > 0.99 ? 0 : 1;
}
