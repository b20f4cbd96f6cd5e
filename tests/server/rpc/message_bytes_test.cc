#include "server/rpc/message_bytes.h"

#include <gtest/gtest.h>

#include <vector>

#include <grpcpp/grpcpp.h>

#include "proto/wire/convert.h"

namespace eplb {

namespace {

wire::Propose SomeProposal() {
  wire::Propose propose;
  propose.term = 2;
  propose.version = 7;
  const Placement placement =
      Placement::Static(*Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 4}));
  propose.layers.push_back(placement.Layer(LayerId{1}));
  propose.reason = "because";
  return propose;
}

const uint8_t* FirstByte(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(bytes.Dump(&slices).ok());
  return slices.at(0).begin();
}

v1::Down Parsed(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(bytes.Dump(&slices).ok());
  v1::Down down;
  EXPECT_TRUE(down.ParseFromArray(slices.at(0).begin(), static_cast<int>(slices.at(0).size())));
  return down;
}

TEST(MessageBytesTest, CopiesOfAProposalShareTheirBytes) {
  MessageBytes bytes;
  const wire::Propose first = SomeProposal();
  const wire::Propose second = first;
  const grpc::ByteBuffer of_first = bytes.Of(first);
  EXPECT_EQ(FirstByte(of_first), FirstByte(bytes.Of(second)));
  EXPECT_EQ(Parsed(of_first).propose().version(), 7u);
  EXPECT_EQ(Parsed(of_first).propose().layers_size(), 1);
}

TEST(MessageBytesTest, AnotherVersionTermOrProposalHasBytesOfItsOwn) {
  MessageBytes bytes;
  const wire::Propose first = SomeProposal();
  wire::Propose version = first;
  version.version = 8;
  wire::Propose term = first;
  term.term = 3;
  EXPECT_EQ(Parsed(bytes.Of(first)).propose().version(), 7u);
  EXPECT_EQ(Parsed(bytes.Of(version)).propose().version(), 8u);
  EXPECT_EQ(Parsed(bytes.Of(term)).propose().term(), 3u);
  wire::Propose other = SomeProposal();  // equal, but no copy
  other.reason = "another";
  EXPECT_EQ(Parsed(bytes.Of(other)).propose().reason(), "another");
  EXPECT_EQ(Parsed(bytes.Of(wire::Welcome{5, "x"})).welcome().term(), 5u);
}

TEST(MessageBytesTest, BytesThatAreNoMessageAreNotParsed) {
  v1::Up up;
  const grpc::Slice garbage("\xff\xff\xff\xff garbage");
  EXPECT_FALSE(ParseBytes(grpc::ByteBuffer(&garbage, 1), &up));
  v1::Up ready;
  ready.mutable_prepared()->set_version(9);
  const std::string text = ready.SerializeAsString();
  const grpc::Slice halves[] = {grpc::Slice(text.substr(0, 1)), grpc::Slice(text.substr(1))};
  EXPECT_TRUE(ParseBytes(grpc::ByteBuffer(halves, 2), &up));
  EXPECT_EQ(up.prepared().version(), 9u);
}

}  // namespace

}  // namespace eplb
