#include "client/cli/formats/conversion.h"

#include <gmock/gmock.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/cli/formats/format_table.h"
#include "placement/split/token_split.h"
#include "proto/wire/placement_files.h"
#include "proto/wire/placement_json.h"
#include "tests/client/cli/formats/random_placement.h"
#include "tests/client/cli/formats/test_files.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Every file that a format can be.
struct Form {
  std::string format;
  std::string file;
};
const std::vector<Form>& Forms() {
  static const std::vector<Form> forms = {
      {"eplb", "eplb.json"},        {"deepseek", "deepseek.npz"}, {"deepseek", "deepseek.json"},
      {"deepseek", "deepseek.npy"}, {"deepseek", "deepseek.csv"}, {"sglang", "sglang.json"},
      {"trtllm", "trtllm.yaml"},    {"vllm", "vllm.jsonl"},       {"ascend", "ascend.json"}};
  return forms;
}

class ConversionTest : public FilesTest {
 protected:
  absl::StatusOr<Conversion> TryToConvert(const Form& from, const Form& to,
                                          const ShapeNumbers& flags) {
    return ConvertPlacementFile({.from = from.format,
                                 .to = to.format,
                                 .in = Path(from.file),
                                 .out = Path(to.file),
                                 .flags = Taken(from, to, flags)});
  }
  // Writes `to.file` from `from.file`. The flags have every number that no format holds.
  Conversion Convert(const Form& from, const Form& to, const ShapeNumbers& flags) {
    const absl::StatusOr<Conversion> conversion = TryToConvert(from, to, flags);
    EXPECT_TRUE(conversion.ok()) << from.file << " -> " << to.file << conversion.status();
    if (!conversion.ok()) return {};
    Write(to.file, conversion->bytes);
    return *conversion;
  }
  std::string Refusal(const Form& from, const Form& to, const ShapeNumbers& flags) {
    return std::string(TryToConvert(from, to, flags).status().message());
  }

  // --first-layer is refused where neither file numbers the model's layers.
  static ShapeNumbers Taken(const Form& from, const Form& to, ShapeNumbers flags) {
    const auto numbers = [](const Form& form) {
      return form.format == "sglang" || form.format == "trtllm";
    };
    if (!numbers(from) && !numbers(to)) flags.layers = {};
    return flags;
  }

  Placement WriteRandom(std::mt19937_64& random, bool random_ranks, bool equal_gpus) {
    Placement placement = RandomPlacement(random, random_ranks, equal_gpus);
    Write("eplb.json", wire::PlacementToJson(placement));
    return placement;
  }
};

ShapeNumbers FlagsOf(const Placement& placement) {
  return {.num_gpus = placement.topology().num_gpus(),
          .num_nodes = placement.topology().num_nodes(),
          .num_groups = placement.topology().num_groups(),
          .layers = {.first = 3}};
}

TEST_F(ConversionTest, SlotsSurviveEveryPairOfFormatsAndEveryWayGivesTheSameFile) {
  constexpr uint64_t kSeed = 21;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 10; ++round) {
    SCOPED_TRACE(round);
    const Placement placement = WriteRandom(random, false, true);
    const ShapeNumbers flags = FlagsOf(placement);
    for (const Form& first : Forms()) Convert(Forms()[0], first, flags);
    for (const Form& first : Forms()) {
      for (const Form& second : Forms()) {
        const Form between{second.format, "second_" + second.file};
        const Form back{"eplb", "back.json"};
        ASSERT_EQ(Convert(first, between, flags).bytes, Read(Path(second.file)))
            << first.file << " -> " << second.file;
        Convert(between, back, flags);
        const absl::StatusOr<Placement> read = ReadPlacementFile(Path(back.file));
        ASSERT_TRUE(read.ok()) << read.status();
        ASSERT_EQ(*read, placement) << first.file << " -> " << second.file;
      }
    }
  }
}

TEST_F(ConversionTest, RanksSurviveWhereTheFormatHoldsThem) {
  constexpr uint64_t kSeed = 23;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  int lossy = 0;
  for (int round = 0; round < 60; ++round) {
    const Placement placement = WriteRandom(random, true, true);
    const Placement rising =
        *Placement::FromSlots(placement.topology(), placement.physical_to_logical_map());
    for (const Form& form : Forms()) {
      const std::string notes =
          absl::StrJoin(Convert(Forms()[0], form, FlagsOf(placement)).notes, "; ");
      Convert(form, {"eplb", "back.json"}, FlagsOf(placement));
      const Placement back = *ReadPlacementFile(Path("back.json"));
      const bool holds =
          form.format == "eplb" || form.file == "deepseek.npz" || form.file == "deepseek.json";
      ASSERT_EQ(back, holds ? placement : rising) << form.file << round;
      ASSERT_EQ(notes.find("no replica ranks") != std::string::npos, back != placement) << notes;
      lossy += back != placement ? 1 : 0;
    }
  }
  EXPECT_GT(lossy, 60);
}

TEST_F(ConversionTest, GpusThatDifferByASlotStayWhereTheyCan) {
  constexpr uint64_t kSeed = 24;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  int unequal = 0;
  for (int round = 0; round < 60; ++round) {
    const Placement placement = WriteRandom(random, false, false);
    if (placement.topology().equal_slots_per_gpu()) continue;
    ++unequal;
    for (const Form& form : Forms()) {
      const bool can =
          form.format == "eplb" || form.format == "deepseek" || form.format == "ascend";
      if (can) {
        Convert(Forms()[0], form, FlagsOf(placement));
        Convert(form, {"eplb", "back.json"}, FlagsOf(placement));
        ASSERT_EQ(*ReadPlacementFile(Path("back.json")), placement) << form.file;
      } else {
        EXPECT_THAT(Refusal(Forms()[0], form, FlagsOf(placement)),
                    HasSubstr("all GPUs hold the same number of slots"));
      }
    }
  }
  EXPECT_GT(unequal, 20);
}

TEST_F(ConversionTest, WhatNobodySaidIsAskedForOrTold) {
  Write("sglang.json", R"({"physical_to_logical_map":[[0,1,0,2]]})");
  const Form sglang{"sglang", "sglang.json"};
  EXPECT_THAT(Refusal(sglang, {"eplb", "o"}, {}), HasSubstr("sglang.json: eplb needs --gpus"));
  EXPECT_THAT(Refusal(sglang, {"ascend", "o"}, {}), HasSubstr("--gpus"));
  EXPECT_THAT(Refusal(sglang, {"trtllm", "o"}, {}), HasSubstr("--first-layer"));
  const std::string notes =
      absl::StrJoin(Convert(sglang, {"eplb", "o"}, {.num_gpus = 2}).notes, "; ");
  EXPECT_THAT(notes, HasSubstr("no replica ranks"));
  EXPECT_THAT(notes, HasSubstr("--nodes"));
  EXPECT_THAT(notes, HasSubstr("--groups"));
  EXPECT_THAT(Convert(sglang, {"vllm", "o"}, {}).notes, IsEmpty());
  EXPECT_THAT(Refusal(sglang, {"vllm", "o"}, {.num_gpus = 3}), HasSubstr("4 slots on 3 GPUs"));
}

TEST_F(ConversionTest, AFlagAgainstTheFileIsRefused) {
  std::mt19937_64 random(1);
  const Placement placement = WriteRandom(random, false, true);
  ShapeNumbers flags = FlagsOf(placement);
  flags.num_gpus = *flags.num_gpus + 1;
  EXPECT_THAT(Refusal(Forms()[0], Forms()[5], flags), HasSubstr("--gpus is"));
  Convert(Forms()[0], Forms()[6], FlagsOf(placement));
  EXPECT_THAT(Refusal(Forms()[6], Forms()[5], {.layers = {.first = 4}}),
              HasSubstr("trtllm.yaml: the file has 3, --first-layer is 4"));
}

TEST_F(ConversionTest, LayerNumbersAreCarriedOrTold) {
  Write("t.yaml",
        "num_slots: 2\nlayer_updates_per_iter: 2\ninitial_global_assignments:\n"
        "  4: [1, 0]\n  3: [0, 1]\n");
  const Form trtllm{"trtllm", "t.yaml"};
  const Conversion vllm = Convert(trtllm, {"vllm", "v.jsonl"}, {});
  EXPECT_EQ(absl::StrJoin(vllm.notes, "; "),
            "layer_updates_per_iter 2 is dropped; vllm files carry no layer numbers; give "
            "--first-layer 3 to convert back");
  // The model's layers 0..2 are dense, and sglang has rows for them too.
  const Conversion sglang = Convert(trtllm, {"sglang", "s.json"}, {});
  EXPECT_EQ(sglang.bytes, "{\"physical_to_logical_map\":[[0,1],[0,1],[0,1],[0,1],[1,0]]}\n");
  EXPECT_EQ(absl::StrJoin(sglang.notes, "; "), "layer_updates_per_iter 2 is dropped");
  const Conversion again = Convert(trtllm, {"trtllm", "again.yaml"}, {});
  EXPECT_EQ(again.bytes,
            "num_slots: 2\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n"
            "  3: [0, 1]\n  4: [1, 0]\n");
}

// A model with an MoE layer after each dense one, such as Llama 4 Maverick.
TEST_F(ConversionTest, LayersThatAreNotConsecutiveKeepTheirNumbers) {
  const std::string yaml =
      "num_slots: 2\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n"
      "  1: [0, 1]\n  3: [1, 0]\n  5: [1, 0]\n";
  Write("t.yaml", yaml);
  const Form trtllm{"trtllm", "t.yaml"};
  for (const Form& other : {Form{"eplb", "o.json"}, Form{"vllm", "v.jsonl"}}) {
    EXPECT_THAT(absl::StrJoin(Convert(trtllm, other, {.num_gpus = 2}).notes, "; "),
                HasSubstr("carry no layer numbers; give "));
    EXPECT_EQ(Convert(other, {"trtllm", "back.yaml"}, {.layers = {.list = {1, 3, 5}}}).bytes, yaml);
    EXPECT_THAT(Refusal(other, {"trtllm", "o"}, {.layers = {.list = {1, 3}}}),
                HasSubstr("has 3 layers, --layers 1,3 names 2"));
  }
  EXPECT_THAT(absl::StrJoin(Convert(trtllm, {"vllm", "v.jsonl"}, {}).notes, "; "),
              HasSubstr("give --layers 1:5:2 to convert back"));
  // sglang has a row for each dense layer, too.
  const Form sglang{"sglang", "s.json"};
  EXPECT_EQ(Convert(trtllm, sglang, {}).bytes,
            "{\"physical_to_logical_map\":[[0,1],[0,1],[0,1],[1,0],[0,1],[1,0]]}\n");
  EXPECT_EQ(Convert(sglang, {"trtllm", "back.yaml"}, {.layers = {.list = {1, 3, 5}}}).bytes, yaml);
  EXPECT_THAT(absl::StrJoin(Convert(sglang, {"vllm", "v.jsonl"}, {}).notes, "; "),
              HasSubstr("give --layers 3,5 to leave them out"));
  EXPECT_THAT(Convert(sglang, {"vllm", "v.jsonl"}, {.layers = {.list = {1, 3, 5}}}).notes,
              IsEmpty());
}

TEST_F(ConversionTest, LayersOfAFileThatNumbersThemAreSelected) {
  Write("t.yaml",
        "num_slots: 2\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n"
        "  1: [0, 1]\n  3: [1, 0]\n  5: [1, 0]\n");
  const Form trtllm{"trtllm", "t.yaml"};
  EXPECT_THAT(Convert(trtllm, {"trtllm", "some.yaml"}, {.layers = {.list = {3, 5}}}).bytes,
              HasSubstr("assignments:\n  3: [1, 0]\n  5: [1, 0]\n"));
  EXPECT_THAT(Refusal(trtllm, {"vllm", "o"}, {.layers = {.list = {3, 4}}}),
              HasSubstr("t.yaml: has layers 1:5:2, --layers 3,4 names layer 4"));
  EXPECT_THAT(Refusal(trtllm, {"vllm", "o"}, {.layers = {.first = 2}}),
              HasSubstr("the file has 1, --first-layer is 2"));
}

TEST_F(ConversionTest, SglangsRowsAreModelLayers) {
  const std::string moe = "[2,0,1,0],[1,2,0,1]";
  const std::string dense = "[0,1,2,0]";
  Write("moe.json", absl::StrCat(R"({"physical_to_logical_map":[)", moe, "]}\n"));
  Write("model.json", absl::StrCat(R"({"physical_to_logical_map":[)", dense, ",", dense, ",", dense,
                                   ",", moe, "]}\n"));
  const Form model{"sglang", "model.json"};
  const Form ours{"eplb", "ours.json"};
  Convert({"sglang", "moe.json"}, ours, {.num_gpus = 2, .layers = {.first = 0}});
  const std::string expected = Read(Path("ours.json"));
  // Dropped, and put in front again.
  const Conversion read = Convert(model, ours, {.num_gpus = 2, .layers = {.first = 3}});
  EXPECT_EQ(Read(Path("ours.json")), expected);
  EXPECT_THAT(absl::StrJoin(read.notes, "; "), Not(HasSubstr("row")));
  Convert(ours, {"sglang", "again.json"}, {.layers = {.first = 3}});
  EXPECT_EQ(Read(Path("again.json")), Read(Path("model.json")));
  // The first row's key is the model's number of MoE layer 0, not behind the dense rows.
  EXPECT_THAT(Convert(model, {"trtllm", "t.yaml"}, {.layers = {.first = 3}}).bytes,
              HasSubstr("initial_global_assignments:\n  3: [2, 0, 1, 0]\n  4: [1, 2, 0, 1]\n"));
  EXPECT_THAT(absl::StrJoin(Convert(ours, {"sglang", "s.json"}, {}).notes, "; "),
              HasSubstr("give --first-layer when dense layers precede it"));
}

TEST_F(ConversionTest, RowsThatLookDenseAreSaidAndTooManyRefused) {
  Write("model.json", R"({"physical_to_logical_map":[[0,1,2,0],[0,1,2,0],[2,0,1,0],[1,2,0,1]]})");
  const Form model{"sglang", "model.json"};
  const auto notes = [&](const ShapeNumbers& flags) {
    return absl::StrJoin(Convert(model, {"vllm", "v.jsonl"}, flags).notes, "; ");
  };
  EXPECT_EQ(notes({}),
            "rows 0,1 look like dense layers (experts lie in order), and sglang has a row for "
            "every model layer; give --first-layer 2 to leave them out");
  EXPECT_EQ(notes({.layers = {.first = 2}}), "");
  EXPECT_EQ(
      notes({.layers = {.first = 3}}),
      "row 2 is left out for --first-layer 3, though not a dense layer (experts lie in order)");
  EXPECT_THAT(Refusal(model, {"vllm", "o"}, {.layers = {.first = 4}}),
              HasSubstr("model.json: has layers 0-3, --first-layer 4 leaves none of them"));
  // Nothing tells a dense layer from one that was never balanced.
  Write("static.json", R"({"physical_to_logical_map":[[0,1,2,0],[0,1,2,0]]})");
  EXPECT_THAT(Convert({"sglang", "static.json"}, {"vllm", "v.jsonl"}, {}).notes, IsEmpty());
}

TEST_F(ConversionTest, FirstLayerIsRefusedWhereNoFileNumbersLayers) {
  for (const char* from : {"eplb", "deepseek", "vllm", "ascend"}) {
    const absl::Status status = ConvertPlacementFile({.from = from,
                                                      .to = "ascend",
                                                      .in = Path("none"),
                                                      .out = Path("out"),
                                                      .flags = {.layers = {.first = 3}}})
                                    .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("--first-layer has no meaning from ", from, " to ascend")));
  }
}

TEST_F(ConversionTest, GpusThatDoNotFitTheSourceAreRefused) {
  Write("s.json", R"({"physical_to_logical_map":[[0,1,0,2]]})");
  EXPECT_THAT(
      Refusal({"sglang", "s.json"}, {"eplb", "o"}, {.num_gpus = 3}),
      HasSubstr("s.json: 4 slots on 3 GPUs: in sglang all GPUs hold the same number of slots"));
  // A map of numpy may be ours, whose GPUs may differ by a slot.
  Write("d.csv", "0,1,0,2\n");
  EXPECT_EQ(Refusal({"deepseek", "d.csv"}, {"eplb", "o"}, {.num_gpus = 3}), "");
}

TEST_F(ConversionTest, WhatIsLostNamesTheFlagsThatSayItAgain) {
  const Topology topology = *Topology::Make({.num_layers = 1,
                                             .num_experts = 4,
                                             .num_slots = 8,
                                             .num_gpus = 4,
                                             .num_nodes = 2,
                                             .num_groups = 1});
  Write("eplb.json", wire::PlacementToJson(Placement::Static(topology)));
  EXPECT_EQ(
      absl::StrJoin(Convert(Forms()[0], {"sglang", "s"}, {.layers = {.first = 0}}).notes, "; "),
      "sglang files carry no GPUs, nodes or expert groups; give --gpus 4 --nodes 2 to convert "
      "back");
}

TEST_F(ConversionTest, SharesStayInOurFilesAndAreDroppedAloudElsewhere) {
  std::mt19937_64 random(2);
  const Placement placement = RandomPlacement(random, true, true);
  const RealMatrix shares = EqualShares(placement);
  const std::string json = wire::PlacementToJson(placement, &shares) + "\n";
  Write("eplb.json", json);
  for (const Form& form : Forms()) {
    const Conversion conversion =
        Convert(Forms()[0], {form.format, "out_" + form.file}, FlagsOf(placement));
    const std::string notes = absl::StrJoin(conversion.notes, "; ");
    EXPECT_EQ(notes.find("replica_share is dropped") == std::string::npos, form.format == "eplb")
        << notes;
  }
  EXPECT_EQ(Read(Path("out_eplb.json")), json);
}

TEST_F(ConversionTest, AnUnusableGpuStaysWhereSlotsMayBeEmpty) {
  const Topology topology =
      *Topology::Make({.num_layers = 2, .num_experts = 2, .num_slots = 6, .num_gpus = 3});
  IndexMatrix slots(2, 6);
  slots << 0, 1, -1, -1, 1, 0, 1, 1, -1, -1, 0, 0;
  const std::string json = wire::PlacementToJson(*Placement::FromSlots(topology, slots));
  Write("eplb.json", json);
  const ShapeNumbers flags{.num_gpus = 3, .num_nodes = 1, .num_groups = 1, .layers = {.first = 0}};
  for (const Form& form : Forms()) {
    if (form.format == "eplb" || form.format == "deepseek") {
      EXPECT_THAT(absl::StrJoin(Convert(Forms()[0], form, flags).notes, ""),
                  Not(HasSubstr("no replica ranks")));
      EXPECT_EQ(Convert(form, {"eplb", "back.json"}, flags).bytes, json + "\n") << form.file;
    } else {
      EXPECT_THAT(Refusal(Forms()[0], form, flags),
                  HasSubstr("eplb.json: layer 0 slot 2 holds no expert"))
          << form.file;
    }
  }
}

TEST_F(ConversionTest, MapsOfTorchAreThoseOfSglang) {
  const auto copy = [this](const std::string& name) {
    Write("dump.pt", Read(EPLB_TEST_DATA "/torch/" + name));
  };
  copy("map.pt");
  EXPECT_EQ(Convert({"sglang", "dump.pt"}, {"deepseek", "o.csv"}, {}).bytes, "0,1,2,0\n2,1,0,0\n");
  EXPECT_THAT(Refusal({"deepseek", "dump.pt"}, {"eplb", "o"}, {}),
              HasSubstr("dump.pt: is a file of torch.save, whose maps are those of sglang"));
  copy("recorder.pt");
  EXPECT_THAT(Refusal({"sglang", "dump.pt"}, {"eplb", "o"}, {}),
              HasSubstr("dump.pt: is no tensor, and no dictionary with a tensor \"physical_to"));
  copy("tensor.pt");
  EXPECT_THAT(Refusal({"sglang", "dump.pt"}, {"eplb", "o"}, {}),
              HasSubstr("dump.pt: is a tensor alone, expected a dictionary"));
  EXPECT_THAT(Refusal({"deepseek", "dump.pt"}, {"nonsense", "o"}, {}),
              HasSubstr("expected one of eplb, deepseek, sglang, trtllm, vllm, ascend"));
  EXPECT_TRUE(absl::IsNotFound(TryToConvert({"deepseek", "missing"}, {"eplb", "o"}, {}).status()));
}

// No byte of a file may crash a reader or make it accept what Placement would not.
TEST_F(ConversionTest, RandomDamageIsReadOrRefused) {
  constexpr uint64_t kSeed = 25;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  const Placement placement = WriteRandom(random, true, true);
  for (const Form& form : Forms()) {
    const std::string good = Convert(Forms()[0], form, FlagsOf(placement)).bytes;
    const PlacementFormat format = *FindPlacementFormat(form.format);
    int refused = 0;
    for (int round = 0; round < 400; ++round) {
      std::string bytes = good;
      for (uint64_t change = random() % 3; change < 3; ++change) {
        bytes[random() % bytes.size()] = static_cast<char>(
            random() % 2 == 0 ? "0123456789-.,[]{}\":&*!ex \n"[random() % 26] : random());
      }
      if (random() % 8 == 0) bytes.resize(random() % bytes.size());
      const absl::StatusOr<PlacementParts> parts = format.parse("f", bytes);
      if (!parts.ok()) {
        ++refused;
        EXPECT_THAT(std::string(parts.status().message()), ::testing::StartsWith("f: "));
      } else {
        (void)MakePlacement(*parts, parts->frame);
      }
    }
    EXPECT_GT(refused, 50) << form.file;
  }
}

}  // namespace
}  // namespace eplb
