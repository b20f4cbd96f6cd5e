#include "proto/wire/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include <google/protobuf/message.h>

#include "base/foreign_text.h"
#include "proto/wire/report_counts.h"
#include "proto/wire/status.h"

namespace eplb::wire {
namespace {

using ::testing::HasSubstr;

Topology SmallTopology() {
  return *Topology::Make({.num_layers = 2, .num_experts = 3, .num_slots = 4, .num_gpus = 2});
}

Placement SmallPlacement() {
  IndexMatrix slots(2, 4);
  slots << 2, 0, 1, 2, 0, 1, 2, 0;
  IndexMatrix ranks(2, 4);
  ranks << 1, 0, 0, 0, 0, 0, 0, 1;
  return *Placement::FromSlotsAndRanks(SmallTopology(), slots, ranks);
}

// A hello in which no field has its default.
Hello GoodHello() {
  Hello hello;
  hello.job = "moe-1";
  hello.run_id = "run/7";
  hello.nonce = ~uint64_t{0};
  hello.rank = 3;
  hello.world_size = 8;
  hello.gpu = 3;
  hello.ep_group = 1;
  hello.shape = {.num_layers = 2,
                 .num_experts = 3,
                 .num_slots = 4,
                 .num_gpus = 2,
                 .num_nodes = 1,
                 .num_groups = 1};
  hello.running_version = 5;
  hello.running_digest = DigestOf(SmallPlacement());
  hello.prepared_version = 6;
  hello.highest_term = 9;
  hello.highest_version = 7;
  hello.step = 123;
  hello.vote_every = 8;
  hello.report_every = 50;
  hello.weight_bytes = 1 << 20;
  hello.state_bytes = int64_t{1} << 40;
  hello.staging_rows = 9;
  hello.staging_layers = 3;
  hello.session_number = 4;
  hello.library_version = "0.1.0";
  hello.model_layers = {3, 4};
  hello.reduce = Reduce::kRoot;
  hello.transport = {.name = "nccl",
                     .fallback_reason = "transport peer is not used: rank 3: no CUDA IPC",
                     .device = 0,
                     .device_name = "NVIDIA H200",
                     .nccl_version = "2.28.9",
                     .nccl_library = "/usr/lib/libnccl.so.2",
                     .settings = {{"max_ctas", "16"}, {"NCCL_IB_TC", "106"}}};
  hello.pipeline_parallel_size = 2;
  hello.expert_tensor_parallel = 3;
  hello.run_number = 12;
  hello.take_over = true;
  hello.memory.value = JobMemory{.term = 9, .run_id = "run/7"};
  hello.split = SplitMode::kBatch;
  return hello;
}

template <class Message>
Message RoundTripUp(const Message& message) {
  v1::Up proto;
  ToProto(UpMessage(message), &proto);
  absl::StatusOr<UpMessage> back = FromProto(proto);
  EXPECT_TRUE(back.ok()) << back.status();
  return std::get<Message>(*back);
}

template <class Message>
Message RoundTripDown(const Message& message) {
  v1::Down proto;
  ToProto(DownMessage(message), &proto);
  absl::StatusOr<DownMessage> back = FromProto(proto);
  EXPECT_TRUE(back.ok()) << back.status();
  return std::get<Message>(*back);
}

// Appends the fields of a message, and of messages inside it, that are not set. The last of
// repeated messages speaks for all, because layer 0 looks like a layer that is not set.
void AddUnset(const google::protobuf::Message& message, std::vector<std::string>& names) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const google::protobuf::Reflection& values = *message.GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const bool set = field.is_repeated() ? values.FieldSize(message, &field) > 0
                                         : values.HasField(message, &field);
    if (!set && field.real_containing_oneof() == nullptr) names.push_back(field.full_name());
    if (field.message_type() == nullptr || !set) continue;
    AddUnset(field.is_repeated()
                 ? values.GetRepeatedMessage(message, &field, values.FieldSize(message, &field) - 1)
                 : values.GetMessage(message, &field),
             names);
  }
}

// The bytes of a message that was read and written again, and its fields that were not set.
template <class Proto, class Variant>
void ExpectComesBack(const Variant& message, const std::vector<std::string>& unset = {}) {
  Proto sent;
  ToProto(message, &sent);
  const auto back = FromProto(sent);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->index(), message.index());
  Proto again;
  ToProto(*back, &again);
  EXPECT_EQ(again.SerializeAsString(), sent.SerializeAsString()) << sent.ShortDebugString();
  std::vector<std::string> names;
  AddUnset(sent, names);
  EXPECT_EQ(names, unset);
}

TEST(ConvertTest, EveryFieldOfEveryMessageComesBack) {
  const Digest digest = DigestOf(SmallPlacement());
  for (const UpMessage& up : std::vector<UpMessage>{
           GoodHello(), Prepared{4, digest, digest}, Nack{4, NackCode::kBusy, "why"},
           Applied{4, digest, 17, 1000, 0.25, "host", "NCCL failed"},
           Failed{4, FailedCode::kTransfer, "late", 18}, Goodbye{"vote failed", {3, 5}, true},
           PlacementBody{11, digest, SmallPlacement()}, Moved{3, "host:1"}}) {
    ExpectComesBack<v1::Up>(up);
  }
  const Propose propose{.term = 3,
                        .version = 8,
                        .base_version = 7,
                        .base_digest = digest,
                        .digest = Sha256("x"),
                        .layers = {SmallPlacement().Layer(LayerId{1})},
                        .chunk = 1,
                        .num_chunks = 2,
                        .reason = "because",
                        .decided_first_step = 150,
                        .decided_last_step = 199,
                        .decision = 12,
                        .policy = "rollback",
                        .asked_by = "alice@host (claimed)"};
  Keep keep{.run_number = 2};
  keep.memory.value = JobMemory{.term = 9};
  for (const DownMessage& down : std::vector<DownMessage>{
           Welcome{3, "0.1.0", "another run", 2}, propose, Cancel{8, "late"},
           SetReportInterval{100, 400}, NeedPlacement{digest}, Drain{10000}, keep}) {
    ExpectComesBack<v1::Down>(down);
  }
  ExpectComesBack<v1::Up>(
      UpMessage(LoadReport{.first_step = 50,
                           .last_step = 99,
                           .counts = LoadMatrix::Constant(2, 3, 7),
                           .dropped_steps = 4,
                           .version = 9,
                           .earlier = {{.last_step = 60,
                                        .version = 4,
                                        .counts = LoadMatrix::Constant(2, 3, int64_t{1} << 40)}},
                           .split_tokens = {21, 0},
                           .split_peaks = {14, 0},
                           .split_peaks_static = {13, 1},
                           .split_peaks_without_eplb = {15, 2},
                           .step_seconds = 0.0125}),
      {"eplb.v1.LoadReport.counts_u64", "eplb.v1.LoadReport.Part.counts_u32",
       "eplb.v1.LoadReport.parts_unknown"});
}

TEST(ConvertTest, AHelloWithoutPipelineAndTensorParallelRanksHasOneOfEach) {
  v1::Up up;
  ToProto(UpMessage(GoodHello()), &up);
  up.mutable_hello()->clear_pipeline_parallel_size();
  up.mutable_hello()->clear_expert_tensor_parallel();
  const Hello hello = std::get<Hello>(*FromProto(up));
  EXPECT_EQ(hello.pipeline_parallel_size, 1);
  EXPECT_EQ(hello.expert_tensor_parallel, 1);
  up.mutable_hello()->set_pipeline_parallel_size(uint32_t{1} << 31);
  EXPECT_THAT(std::string(FromProto(up).status().message()), HasSubstr("pipeline_parallel_size"));
}

TEST(ConvertTest, TextsAndSettingsOfATransportAreCut) {
  Hello hello = GoodHello();
  EXPECT_EQ(RoundTripUp(hello).transport, hello.transport);
  hello.transport.fallback_reason = std::string(5000, 'x');
  hello.transport.settings.assign(1000, {std::string(5000, 'n'), std::string(5000, 'v')});
  const TransportInfo cut = RoundTripUp(hello).transport;
  EXPECT_EQ(cut.fallback_reason, Clipped(hello.transport.fallback_reason));
  ASSERT_EQ(cut.settings.size(), 32u);
  EXPECT_EQ(cut.settings[0].name.size(), 64u);
  EXPECT_EQ(cut.settings[0].value.size(), 128u);
}

TEST(ConvertTest, SmallCountsTravelAsU32AndLargeOnesAsU64) {
  LoadReport report{.first_step = 50,
                    .last_step = 99,
                    .counts = LoadMatrix::Constant(2, 3, 7),
                    .dropped_steps = 4};
  v1::Up proto;
  ToProto(UpMessage(report), &proto);
  EXPECT_EQ(proto.load_report().counts_u32().size(), 24u);
  EXPECT_TRUE(proto.load_report().counts_u64().empty());
  const LoadReport back = RoundTripUp(report);
  EXPECT_EQ(back.counts.size(), 0);  // not unpacked
  EXPECT_EQ(CountBytes(back), 24u);
  EXPECT_TRUE((CountsOf(back) == report.counts).all());
  EXPECT_TRUE((CountsOf(RoundTripUp(back)) == report.counts).all());
  EXPECT_EQ(back.dropped_steps, 4);

  report.counts(1, 2) = std::numeric_limits<int64_t>::max();
  ToProto(UpMessage(report), &proto);
  EXPECT_EQ(proto.load_report().counts_u64().size(), 48u);
  EXPECT_TRUE((CountsOf(RoundTripUp(report)) == report.counts).all());
}

// A client and a daemon of different versions skip fields that only one of them has.
TEST(ConvertTest, FieldsOfALaterVersionAreIgnored) {
  v1::Up up;
  ToProto(UpMessage(GoodHello()), &up);
  up.mutable_hello()->GetReflection()->MutableUnknownFields(up.mutable_hello())->AddVarint(39, 5);
  v1::Up later;
  ASSERT_TRUE(later.ParseFromString(up.SerializeAsString()));
  EXPECT_EQ(std::get<Hello>(*FromProto(later)).job, "moe-1");
  v1::Down down;
  ToProto(DownMessage(SetReportInterval{.report_every = 100, .from_step = 400}), &down);
  down.mutable_set_report_interval()
      ->GetReflection()
      ->MutableUnknownFields(down.mutable_set_report_interval())
      ->AddVarint(9, 5);
  v1::Down known;
  ASSERT_TRUE(known.ParseFromString(down.SerializeAsString()));
  const auto pace = std::get<SetReportInterval>(*FromProto(known));
  EXPECT_EQ(pace.report_every, 100);
  EXPECT_EQ(pace.from_step, 400);
  // An earlier daemon does not say from_step.
  down.mutable_set_report_interval()->clear_from_step();
  EXPECT_EQ(std::get<SetReportInterval>(*FromProto(down)).from_step, 0);
}

LoadReport ReportWithParts() {
  LoadReport report{.first_step = 50, .last_step = 99, .counts = LoadMatrix::Constant(2, 3, 7)};
  report.version = 9;
  report.earlier = {{.last_step = 60, .version = 4, .counts = LoadMatrix::Constant(2, 3, 2)},
                    {.last_step = 70, .version = 5, .counts = LoadMatrix::Constant(2, 3, 1)}};
  return report;
}

TEST(ConvertTest, PartsOfAWindowComeBackWhole) {
  LoadReport report = ReportWithParts();
  report.earlier[1].counts(0, 0) = int64_t{1} << 40;
  for (const LoadReport& back : {RoundTripUp(report), RoundTripUp(RoundTripUp(report))}) {
    EXPECT_EQ(back.version, 9);
    EXPECT_FALSE(back.parts_unknown);
    ASSERT_EQ(back.earlier.size(), 2u);
    EXPECT_EQ(back.earlier[0].last_step, 60);
    EXPECT_EQ(back.earlier[1].version, 5);
    EXPECT_EQ(back.earlier[0].counts.size(), 0) << "not unpacked";
    EXPECT_TRUE((CountsOf(back.earlier[0]) == 2).all());
    EXPECT_TRUE((CountsOf(back.earlier[1]) == report.earlier[1].counts).all());
    EXPECT_EQ(CountBytes(back), 24u + 24u + 48u);
  }
  report.earlier.clear();
  report.parts_unknown = true;
  EXPECT_TRUE(RoundTripUp(report).parts_unknown);
}

TEST(ReportCountsTest, PackedAndPlainCountsAddUpAlike) {
  const LoadReport plain{.counts = LoadMatrix::Constant(2, 3, 7)};
  const LoadReport packed = RoundTripUp(LoadReport{.counts = LoadMatrix::Constant(2, 3, 7)});
  LoadMatrix sum = LoadMatrix::Constant(2, 3, 100);
  EXPECT_TRUE(AddCounts(plain, &sum));
  EXPECT_TRUE(AddCounts(packed, &sum));
  EXPECT_TRUE((sum == 114).all());
  EXPECT_EQ(NumLayers(packed), 2);
  EXPECT_EQ(NumExperts(packed), 3);
  EXPECT_EQ(LeastCount(packed), 0);
  EXPECT_EQ(LeastCount(plain), 7);
}

TEST(ReportCountsTest, ALayerHasTokensInBothFormsIfOneCountIsAboveZero) {
  LoadReport plain{.counts = LoadMatrix::Zero(3, 4)};
  plain.counts(1, 3) = int64_t{1} << 31;
  const LoadReport packed = RoundTripUp(plain);
  for (const LoadReport& report : {plain, packed}) {
    EXPECT_FALSE(HasTokens(report, 0));
    EXPECT_TRUE(HasTokens(report, 1));
    EXPECT_FALSE(HasTokens(report, 2));
  }
}

TEST(ReportCountsTest, ASumAboveInt64IsFoundInBothForms) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const bool is_packed : {false, true}) {
    LoadReport report{.counts = LoadMatrix::Constant(1, 2, 5)};
    if (is_packed) report = RoundTripUp(report);
    LoadMatrix fits = LoadMatrix::Constant(1, 2, most - 5);
    EXPECT_TRUE(AddCounts(report, &fits));
    EXPECT_TRUE((fits == most).all());
    LoadMatrix above = LoadMatrix::Constant(1, 2, most - 4);
    EXPECT_FALSE(AddCounts(report, &above));
  }
}

// One broken field, and the words that the error must contain.
struct BrokenUp {
  const char* name;
  void (*breaks)(v1::Up*);
  const char* expected;
};

class BrokenUpTest : public ::testing::TestWithParam<BrokenUp> {};

TEST_P(BrokenUpTest, IsRefusedNamingTheField) {
  v1::Up proto;
  GetParam().breaks(&proto);
  const absl::StatusOr<UpMessage> result = FromProto(proto);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(GetParam().expected));
}

v1::Hello* HelloIn(v1::Up* up) {
  ToProto(UpMessage(GoodHello()), up);
  return up->mutable_hello();
}

v1::LoadReport* ReportIn(v1::Up* up) {
  ToProto(UpMessage(LoadReport{0, 49, LoadMatrix::Constant(2, 3, 7), 0}), up);
  return up->mutable_load_report();
}

// A report with two parts and splits of two layers.
v1::LoadReport* PartsIn(v1::Up* up) {
  LoadReport report = ReportWithParts();
  report.split_tokens = {21, 0};
  report.split_peaks = {14, 0};
  ToProto(UpMessage(report), up);
  return up->mutable_load_report();
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BrokenUpTest,
    ::testing::Values(
        BrokenUp{"empty", [](v1::Up*) {}, "the stream message is empty"},
        BrokenUp{"job", [](v1::Up* up) { HelloIn(up)->set_job("a b"); }, "job has a character"},
        BrokenUp{"no_job", [](v1::Up* up) { HelloIn(up)->clear_job(); }, "job has 0 characters"},
        BrokenUp{"long_job", [](v1::Up* up) { HelloIn(up)->set_job(std::string(129, 'a')); },
                 "job has 129"},
        BrokenUp{"run_id", [](v1::Up* up) { HelloIn(up)->set_run_id("a\nb"); }, "run_id has"},
        BrokenUp{"rank", [](v1::Up* up) { HelloIn(up)->set_rank(~0u); }, "rank is 4294967295"},
        BrokenUp{"digest", [](v1::Up* up) { HelloIn(up)->set_running_digest("short"); },
                 "running_digest has 5 bytes"},
        BrokenUp{"version", [](v1::Up* up) { HelloIn(up)->set_running_version(~uint64_t{0}); },
                 "running_version is"},
        BrokenUp{"steps", [](v1::Up* up) { ReportIn(up)->set_first_step(50); }, "steps 50..49"},
        BrokenUp{"no_counts", [](v1::Up* up) { ReportIn(up)->clear_counts_u32(); }, "exactly one"},
        BrokenUp{"both_counts", [](v1::Up* up) { ReportIn(up)->set_counts_u64("x"); },
                 "exactly one"},
        BrokenUp{"few_counts", [](v1::Up* up) { ReportIn(up)->mutable_counts_u32()->resize(20); },
                 "has 20 bytes of counts"},
        BrokenUp{"odd_counts", [](v1::Up* up) { ReportIn(up)->mutable_counts_u32()->append("x"); },
                 "25 bytes"},
        BrokenUp{"huge_shape",
                 [](v1::Up* up) {
                   ReportIn(up)->set_num_layers(1u << 31);
                   ReportIn(up);
                   up->mutable_load_report()->set_num_experts(1u << 31);
                 },
                 "cells"},
        BrokenUp{"above_int64",
                 [](v1::Up* up) {
                   ReportIn(up)->clear_counts_u32();
                   up->mutable_load_report()->set_counts_u64(std::string(48, '\xff'));
                 },
                 "above 2^63-1"},
        BrokenUp{"nack_code",
                 [](v1::Up* up) { up->mutable_nack()->set_code(static_cast<v1::Nack::Code>(99)); },
                 "code is 99"},
        BrokenUp{"pause",
                 [](v1::Up* up) {
                   ToProto(UpMessage(Applied{}), up);
                   up->mutable_applied()->set_pause_seconds(
                       std::numeric_limits<double>::quiet_NaN());
                 },
                 "pause_seconds"},
        BrokenUp{"failed_code", [](v1::Up* up) { up->mutable_failed()->set_version(1); },
                 "code is 0"},
        BrokenUp{"reduce",
                 [](v1::Up* up) {
                   HelloIn(up)->set_reduce(static_cast<v1::Hello::Reduce>(7));
                 },
                 "reduce is 7"},
        BrokenUp{"split",
                 [](v1::Up* up) { HelloIn(up)->set_split(static_cast<v1::Hello::Split>(5)); },
                 "split is 5"},
        BrokenUp{"device",
                 [](v1::Up* up) {
                   HelloIn(up)->mutable_transport()->set_device(uint32_t{1} << 31);
                 },
                 "transport.device"},
        BrokenUp{"split_tokens", [](v1::Up* up) { PartsIn(up)->add_split_tokens(1); },
                 "split_tokens has 3 numbers, expected 0 or 2"},
        BrokenUp{"few_split_peaks",
                 [](v1::Up* up) { PartsIn(up)->mutable_split_peaks()->Truncate(1); },
                 "split_peaks has 1 numbers, expected 0 or 2"},
        BrokenUp{"split_peaks",
                 [](v1::Up* up) { PartsIn(up)->set_split_peaks(0, uint64_t{1} << 63); },
                 "split_peaks is"},
        BrokenUp{"part_with_both_counts",
                 [](v1::Up* up) { PartsIn(up)->mutable_earlier(1)->set_counts_u64("12"); },
                 "earlier part 1 must set exactly one of"},
        BrokenUp{"part_with_few_counts",
                 [](v1::Up* up) { PartsIn(up)->mutable_earlier(0)->set_counts_u32("123"); },
                 "earlier part 0 has 3 bytes of counts, expected 2 layers x 3 experts x 4"},
        BrokenUp{"many_parts",
                 [](v1::Up* up) {
                   PartsIn(up);
                   for (int i = 0; i < kMaxLoadParts; ++i) up->mutable_load_report()->add_earlier();
                 },
                 "has 34 earlier parts, expected 0..32"},
        BrokenUp{"unknown_parts", [](v1::Up* up) { PartsIn(up)->set_parts_unknown(true); },
                 "has 2 earlier parts and parts_unknown"},
        BrokenUp{"part_version",
                 [](v1::Up* up) {
                   PartsIn(up)->mutable_earlier(0)->set_version(uint64_t{1} << 63);
                 },
                 "earlier.version is 9223372036854775808, above 2^63-1"},
        BrokenUp{"body", [](v1::Up* up) { up->mutable_placement_body(); }, "num_layers is 0"}),
    [](const auto& param) { return param.param.name; });

// Field 40 with the bytes "later": what a version with more kinds sends.
TEST(ConvertTest, AMessageOfALaterKindIsToldFromOneThatIsWrong) {
  const std::string later("\xc2\x02\x05later", 8);
  v1::Up up;
  ASSERT_TRUE(up.ParseFromString(later));
  EXPECT_EQ(
      FromProto(up).status(),
      absl::UnimplementedError("the stream message is of the unknown kind 40, of a later version"));
  v1::Down down;
  ASSERT_TRUE(down.ParseFromString(later));
  EXPECT_EQ(FromProto(down).status(), FromProto(up).status());
  EXPECT_EQ(FromProto(v1::Down()).status(),
            absl::InvalidArgumentError("the stream message is empty"));
}

TEST(ConvertTest, AKnownMessageMayHaveAFieldOfALaterVersionBesideIt) {
  v1::Up up;
  ASSERT_TRUE(up.ParseFromString(std::string("\x42\x00\xc2\x02\x05later", 10)));
  const absl::StatusOr<UpMessage> message = FromProto(up);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_TRUE(std::holds_alternative<Goodbye>(*message));
}

TEST(ConvertTest, PlacementWithAWrongDigestIsRefused) {
  v1::Placement proto;
  ToProto(SmallPlacement(), 3, &proto);
  proto.mutable_layers(0)->set_replica_rank(0, 0);
  proto.mutable_layers(0)->set_replica_rank(3, 1);
  EXPECT_THAT(std::string(FromProto(proto).status().message()), HasSubstr("the maps give"));
}

TEST(ConvertTest, PlacementWithAMissingLayerIsRefused) {
  v1::Placement proto;
  ToProto(SmallPlacement(), 3, &proto);
  proto.mutable_layers()->RemoveLast();
  EXPECT_THAT(std::string(FromProto(proto).status().message()),
              HasSubstr("has 1 layers, its shape has 2"));
}

TEST(ConvertTest, PlacementWithAShortLayerIsRefusedBeforeAnythingOfItsShapeIsMade) {
  v1::Placement proto;
  ToProto(SmallPlacement(), 3, &proto);
  proto.mutable_shape()->set_num_layers(2);
  proto.mutable_shape()->set_num_slots(1 << 20);
  EXPECT_THAT(std::string(FromProto(proto).status().message()),
              HasSubstr("placement layer 0 has 4 slots, its shape has 1048576"));
}

TEST(ConvertTest, TextsOfRanksAreClipped) {
  const std::string text(5000, 'x');
  EXPECT_EQ(RoundTripUp(Nack{1, NackCode::kBusy, text}).detail, Clipped(text));
  Failed failed;
  failed.code = FailedCode::kTransfer;
  failed.detail = text;
  EXPECT_EQ(RoundTripUp(failed).detail, Clipped(text));
  EXPECT_EQ(RoundTripUp(Goodbye{text, {}, true}).reason, Clipped(text));
  Hello hello = GoodHello();
  hello.library_version = text;
  EXPECT_EQ(RoundTripUp(hello).library_version, Clipped(text));
}

TEST(ConvertTest, TextsOfEitherSideArriveAsUtf8WithoutControls) {
  const std::string text = "a\x1b[31m\u009b\rb\xff";
  const std::string clean = "a?[31m? b?";
  EXPECT_EQ(RoundTripUp(Nack{1, NackCode::kBusy, text}).detail, clean);
  EXPECT_EQ(RoundTripUp(Goodbye{text, {}, true}).reason, clean);
  Hello hello = GoodHello();
  hello.library_version = text;
  hello.transport.fallback_reason = text;
  EXPECT_EQ(RoundTripUp(hello).library_version, clean);
  EXPECT_EQ(RoundTripUp(hello).transport.fallback_reason, clean);
  EXPECT_EQ(RoundTripDown(Cancel{1, text}).reason, clean);
  Welcome welcome;
  welcome.waits = text;
  EXPECT_EQ(RoundTripDown(welcome).waits, clean);
}

// A daemon of an earlier version sends text as it has it.
TEST(ConvertTest, TextsOfADaemonAreCleanedWhereTheyArrive) {
  v1::Down down;
  down.mutable_propose()->set_reason("a\x1b[2Jb");
  down.mutable_propose()->set_asked_by("eve\u202e");
  down.mutable_propose()->set_base_digest(std::string(Digest().bytes.size(), '\0'));
  down.mutable_propose()->set_digest(std::string(Digest().bytes.size(), '\0'));
  const absl::StatusOr<DownMessage> message = FromProto(down);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(std::get<Propose>(*message).reason, "a?[2Jb");
  EXPECT_EQ(std::get<Propose>(*message).asked_by, "eve?");
}

TEST(StatusTest, AMessageFitsIntoTheTrailers) {
  const grpc::Status status = ToGrpc(absl::NotFoundError(std::string(100'000, 'x')));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message().size(), kMaxStatusMessage);
}

}  // namespace
}  // namespace eplb::wire
