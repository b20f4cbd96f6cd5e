// The options of a client in the C interface become those of the library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "client/c/arguments.h"
#include "client/c/client_handle.h"

namespace eplb::c {

namespace {

using ::testing::HasSubstr;

// Every field with a value that no other one has.
eplb_client_options Distinct() {
  eplb_client_options options = DefaultClientOptions();
  options.job = "job";
  options.run_id = "run_id";
  options.endpoint = "endpoint";
  options.tls_ca = "ca";
  options.tls_cert = "cert";
  options.tls_key = "key";
  options.tls_server_name = "server_name";
  options.reduce = "reduce";
  options.split = "split";
  options.transport = "transport";
  options.bind_address = "bind_address";
  options.initial_placement = "initial_placement";
  options.placements_path = "placements_path";
  options.history_path = "history_path";
  int32_t value = 100;
  for (int32_t* field :
       {&options.rank, &options.world_size, &options.num_layers, &options.num_experts,
        &options.num_slots, &options.num_gpus, &options.num_nodes, &options.num_groups,
        &options.vote_every, &options.report_every, &options.report_max_steps,
        &options.layers_per_chunk, &options.nccl_max_ctas, &options.nccl_channels_per_net_peer,
        &options.nccl_traffic_class, &options.nccl_warm_up_ranks, &options.pipeline_parallel_size,
        &options.expert_tensor_parallel}) {
    *field = ++value;
  }
  options.first_step = 201;
  options.nccl_piece_bytes = 202;
  options.start_deadline_s = 203;
  options.vote_deadline_s = 204.5;
  options.transfer_deadline_s = 205;
  options.state_placement = EPLB_STATE_WITH_PRIMARY;
  options.require_daemon = options.ahead = 1;
  return options;
}

TEST(ClientOptionsTest, EveryFieldGetsToItsOption) {
  const eplb_client_options given = Distinct();
  const absl::StatusOr<ClientOptions> read = ReadClientOptions(&given);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->job, "job");
  EXPECT_EQ(read->run_id, "run_id");
  EXPECT_EQ(read->endpoint, "endpoint");
  EXPECT_EQ(read->tls.ca, "ca");
  EXPECT_EQ(read->tls.cert, "cert");
  EXPECT_EQ(read->tls.key, "key");
  EXPECT_EQ(read->tls.server_name, "server_name");
  EXPECT_EQ(read->reduce, "reduce");
  EXPECT_EQ(read->split, "split");
  EXPECT_EQ(read->transport, "transport");
  EXPECT_EQ(read->bind_address, "bind_address");
  EXPECT_EQ(read->initial_placement, "initial_placement");
  EXPECT_EQ(read->placements_path, "placements_path");
  EXPECT_EQ(read->history_path, "history_path");
  EXPECT_THAT(
      (std::vector<int32_t>{
          read->rank, read->world_size, read->num_layers, read->num_experts, read->num_slots,
          read->num_gpus, read->num_nodes, read->num_groups, read->vote_every, read->report_every,
          read->report_max_steps, read->layers_per_chunk, read->nccl.max_ctas,
          read->nccl.channels_per_net_peer, read->nccl.traffic_class, read->nccl.warm_up_ranks,
          read->pipeline_parallel_size, read->expert_tensor_parallel}),
      ::testing::ElementsAre(101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114,
                             115, 116, 117, 118));
  EXPECT_EQ(read->first_step, 201);
  EXPECT_EQ(read->nccl.piece_bytes, 202);
  EXPECT_EQ(read->start_deadline, absl::Seconds(203));
  EXPECT_EQ(read->vote_deadline, absl::Milliseconds(204'500));
  EXPECT_EQ(read->transfer_deadline, absl::Seconds(205));
  EXPECT_EQ(read->state_placement, StatePlacement::kWithPrimary);
  EXPECT_TRUE(read->require_daemon && read->ahead);
  eplb_client_options older = given;  // a program that was compiled before there was `ahead`
  older.struct_size = offsetof(eplb_client_options, ahead);
  EXPECT_FALSE(ReadClientOptions(&older)->ahead);
}

TEST(ClientOptionsTest, DefaultsAreThoseOfTheClient) {
  const eplb_client_options given = DefaultClientOptions();
  const absl::StatusOr<ClientOptions> read = ReadClientOptions(&given);
  ASSERT_TRUE(read.ok()) << read.status();
  const ClientOptions defaults;
  EXPECT_EQ(read->job, defaults.job);
  EXPECT_EQ(read->transport, defaults.transport);
  EXPECT_EQ(read->split, defaults.split);
  EXPECT_EQ(read->bind_address, defaults.bind_address);
  EXPECT_EQ(read->vote_every, defaults.vote_every);
  EXPECT_EQ(read->report_every, defaults.report_every);
  EXPECT_EQ(read->layers_per_chunk, defaults.layers_per_chunk);
  EXPECT_EQ(read->vote_deadline, defaults.vote_deadline);
  EXPECT_EQ(read->state_placement, defaults.state_placement);
  EXPECT_EQ(read->nccl.piece_bytes, defaults.nccl.piece_bytes);
}

TEST(ClientOptionsTest, WhatIsNoSuchStructIsNamed) {
  const auto refusal = [](void (*change)(eplb_client_options&)) {
    eplb_client_options given = DefaultClientOptions();
    change(given);
    const absl::Status status = ReadClientOptions(&given).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal([](eplb_client_options& options) { options.reserved = 1; }),
            "options.reserved: 1, expected 0");
  EXPECT_EQ(refusal([](eplb_client_options& options) { options.reserved2 = 3; }),
            "options.reserved2: 3, expected 0");
  EXPECT_EQ(refusal([](eplb_client_options& options) { options.ahead = -1; }),
            "ahead: -1, expected 0 or 1");
  EXPECT_EQ(refusal([](eplb_client_options& options) { options.take_over = 7; }),
            "take_over: 7, expected 0 or 1");
  EXPECT_EQ(refusal([](eplb_client_options& options) { options.require_daemon = 2; }),
            "require_daemon: 2, expected 0 or 1");
  EXPECT_THAT(refusal([](eplb_client_options& options) { options.state_placement = 2; }),
              HasSubstr("state_placement: 2, expected EPLB_STATE_WITH_PRIMARY (0) or"));
  EXPECT_THAT(refusal([](eplb_client_options& options) { options.struct_size = 0; }),
              HasSubstr("options.struct_size is 0"));
  EXPECT_EQ(ReadClientOptions(nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ClientOptionsTest, InitFillsWhatTheCallersStructHolds) {
  struct Newer {
    eplb_client_options known;
    int64_t added = 77;
  } options;
  ASSERT_EQ(eplb_client_options_init(&options.known, sizeof(options)), EPLB_OK);
  EXPECT_EQ(options.known.struct_size, sizeof(options));
  EXPECT_EQ(options.known.vote_every, DefaultClientOptions().vote_every);
  EXPECT_EQ(options.added, 0) << "what this library does not know";
  options.known.ahead = 77;
  const size_t older = offsetof(eplb_client_options, ahead);
  ASSERT_EQ(eplb_client_options_init(&options.known, older), EPLB_OK);
  EXPECT_EQ(options.known.ahead, 77) << "beyond the caller's struct";
  EXPECT_EQ(eplb_client_options_init(nullptr, sizeof(options)), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_client_options_init(&options.known, 4), EPLB_INVALID_ARGUMENT);
}

}  // namespace

}  // namespace eplb::c
