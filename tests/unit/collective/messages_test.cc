#include "collective/messages.h"

#include <doctest/doctest.h>

#include "base/prng.h"

using namespace mlt::collective;

TEST_CASE("decode__gives_back_what_encode_wrote") {
  std::vector<std::byte> bytes;
  Register shape;
  shape.key = 0x1234567890;
  shape.partition = 77;
  shape.elements = 1'000'000;
  shape.segment_bytes = 1'432;
  shape.loss_bound = 0.1;
  shape.average = false;
  shape.order = 5;
  shape.traffic_class = 6;
  shape.tensor_elements = 0x12'3456'789A;
  shape.services = 3;
  shape.max_dead_services = 9;
  shape.checksums = true;
  encode(shape, bytes);
  const auto decoded = decode(bytes);
  REQUIRE(decoded.has_value());
  const auto& back = std::get<Register>(*decoded);
  CHECK(back.key == shape.key);
  CHECK(back.partition == shape.partition);
  CHECK(back.elements == shape.elements);
  CHECK(back.segment_bytes == shape.segment_bytes);
  CHECK(back.loss_bound == shape.loss_bound);
  CHECK(back.average == shape.average);
  CHECK(back.order == shape.order);
  CHECK(back.traffic_class == shape.traffic_class);
  CHECK(back.tensor_elements == shape.tensor_elements);
  CHECK(back.services == shape.services);
  CHECK(back.max_dead_services == shape.max_dead_services);
  CHECK(back.checksums);
  encode(Checksum{0x1234567890, 77, 0xFEDC'BA98'7654'3210}, bytes);
  CHECK(std::get<Checksum>(*decode(bytes)).key == 0x1234567890);
  CHECK(std::get<Checksum>(*decode(bytes)).partition == 77);
  CHECK(std::get<Checksum>(*decode(bytes)).checksum == 0xFEDC'BA98'7654'3210);
  encode(Damaged{0x1234567890, 7, 65'534, "changed"}, bytes);
  CHECK(std::get<Damaged>(*decode(bytes)).key == 0x1234567890);
  CHECK(std::get<Damaged>(*decode(bytes)).partition == 7);
  CHECK(std::get<Damaged>(*decode(bytes)).rank == 65'534);
  CHECK(std::get<Damaged>(*decode(bytes)).text == "changed");
  encode(Refused{3, 4, "no room"}, bytes);
  CHECK(std::get<Refused>(*decode(bytes)).text == "no room");
  encode(Aborted{3, 4, 5}, bytes);
  CHECK(std::get<Aborted>(*decode(bytes)).failed_rank == 5);
  encode(Registered{3, 4}, bytes);
  CHECK(std::get<Registered>(*decode(bytes)).partition == 4);
  CHECK_FALSE(std::get<Registered>(*decode(bytes)).on_demand);
  encode(Registered{3, 4, true}, bytes);
  CHECK(std::get<Registered>(*decode(bytes)).on_demand);
  encode(Ready{3, 4}, bytes);
  CHECK(std::get<Ready>(*decode(bytes)).partition == 4);
  encode(Failed{0xFF'FFFF'FFFF, 9, -1, 6, "late~"}, bytes);  // the last printable one
  const auto failed = std::get<Failed>(*decode(bytes));
  std::vector<std::byte> hostile;
  encode(Failed{1, 2, 3, 4, "\xFF\x1B[2J"}, hostile);
  CHECK(std::get<Failed>(*decode(hostile)).text == "??[2J");
  CHECK(failed.group == 0xFF'FFFF'FFFF);
  CHECK(failed.sequence == 9);
  CHECK(failed.failed_rank == -1);
  CHECK(failed.status == 6);
  CHECK(failed.text == "late~");
  Called called{0xFF'FFFF'FFFE, 7, {}};
  called.shape[0] = std::byte{1};
  called.shape[31] = std::byte{200};
  encode(called, bytes);
  CHECK(std::get<Called>(*decode(bytes)).group == called.group);
  CHECK(std::get<Called>(*decode(bytes)).sequence == 7);
  CHECK(std::get<Called>(*decode(bytes)).shape == called.shape);
  encode(Gone{65'534, 3}, bytes);
  CHECK(std::get<Gone>(*decode(bytes)).rank == 65'534);
  CHECK(std::get<Gone>(*decode(bytes)).max_dead_workers == 3);
  encode(Overdue{0x1234567890, 7, 65'534, "late"}, bytes);
  CHECK(std::get<Overdue>(*decode(bytes)).key == 0x1234567890);
  CHECK(std::get<Overdue>(*decode(bytes)).partition == 7);
  CHECK(std::get<Overdue>(*decode(bytes)).rank == 65'534);
  CHECK(std::get<Overdue>(*decode(bytes)).text == "late");
  encode(Move{shape, 0x12'3456'789A, {std::byte{1}, std::byte{0x80}}}, bytes);
  const auto move = std::get<Move>(*decode(bytes));
  CHECK(move.shape.tensor_elements == shape.tensor_elements);
  CHECK(move.shape.loss_bound == shape.loss_bound);
  CHECK(move.rounds == 0x12'3456'789A);
  CHECK(move.cells == std::vector<std::byte>{std::byte{1}, std::byte{0x80}});
  encode(Move{shape, 1, std::vector<std::byte>(65'537)}, bytes);
  CHECK_FALSE(decode(bytes).has_value());
  for (const bool checksums : {false, true}) {
    encode(Registered{3, 4, !checksums, checksums}, bytes);
    CHECK(bytes.back() == std::byte{checksums ? std::uint8_t{2} : std::uint8_t{1}});
    CHECK(std::get<Registered>(*decode(bytes)).on_demand == !checksums);
    CHECK(std::get<Registered>(*decode(bytes)).checksums == checksums);
    encode(Moved{3, 4, 9, !checksums, checksums}, bytes);
    CHECK(std::get<Moved>(*decode(bytes)).on_demand == !checksums);
    CHECK(std::get<Moved>(*decode(bytes)).checksums == checksums);
  }
  encode(Moved{0x1234567890, 7, 9, true}, bytes);
  CHECK(std::get<Moved>(*decode(bytes)).on_demand);
  CHECK(std::get<Moved>(*decode(bytes)).key == 0x1234567890);
  CHECK(std::get<Moved>(*decode(bytes)).rounds == 9);
  encode(Lost{1, {65'534, 2}, {3}, 5}, bytes);
  const auto lost = std::get<Lost>(*decode(bytes));
  CHECK(lost.agreed == 1);
  CHECK(lost.max_dead_services == 5);
  CHECK(lost.excluded == std::vector<std::uint32_t>{65'534, 2});
  CHECK(lost.lost == std::vector<std::uint32_t>{3});
  encode(Excluded{2, {5, 6, 7}}, bytes);
  const auto excluded = std::get<Excluded>(*decode(bytes));
  CHECK(excluded.agreed == 2);
  CHECK(excluded.ranks == std::vector<std::uint32_t>{5, 6, 7});
  encode(Loads{{65'535, 0, 1}}, bytes);
  CHECK(std::get<Loads>(*decode(bytes)).units == std::vector<std::uint32_t>{65'535, 0, 1});
  encode(Loads{}, bytes);
  CHECK(std::get<Loads>(*decode(bytes)).units.empty());
}

TEST_CASE("decode__refuses_every_truncation_and_anything_longer") {
  std::vector<std::byte> bytes;
  for (const Message& message :
       {Message{Register{}}, Message{Registered{1, 2}}, Message{Refused{1, 2, "because"}}, Message{Aborted{1, 2, 3}},
        Message{Ready{1, 2}}, Message{Failed{1, 2, 3, 4, "why"}}, Message{Called{1, 2, {}}}, Message{Gone{1, 2}},
        Message{Overdue{1, 2, 3, "why"}}, Message{Move{{}, 1, {std::byte{1}}}}, Message{Moved{1, 2, 3}},
        Message{Lost{1, {2}, {3, 4}, 5}}, Message{Excluded{1, {2, 3}}}, Message{Loads{{1, 2}}}}) {
    encode(message, bytes);
    for (std::size_t n = 0; n < bytes.size(); ++n) CHECK_FALSE(decode(std::span(bytes).first(n)).has_value());
    bytes.push_back(std::byte{0});
    CHECK_FALSE(decode(bytes).has_value());
  }
}

// Ranks, and numbers of them, have 16 bits.
TEST_CASE("decode__refuses_a_rank_or_limit_beyond_16_bits") {
  Register shape;
  std::vector<std::byte> bytes;
  const auto is_taken_with = [&](const Message& message, std::size_t from_end, bool is_too_large) {
    encode(message, bytes);
    if (is_too_large) bytes[bytes.size() - from_end + 2] = std::byte{1};
    return decode(bytes).has_value();
  };
  for (const bool is_too_large : {false, true}) {
    CHECK(is_taken_with(shape, 4, is_too_large) != is_too_large);
    CHECK(is_taken_with(Move{shape, 0, {}}, 16, is_too_large) != is_too_large);
    CHECK(is_taken_with(Lost{0, {}, {}, 65'535}, 4, is_too_large) != is_too_large);
    CHECK(is_taken_with(Aborted{1, 2, 3}, 4, is_too_large) != is_too_large);
    CHECK(is_taken_with(Overdue{1, 2, 3, ""}, 8, is_too_large) != is_too_large);
  }
}

TEST_CASE("decode__survives_random_bytes") {
  mlt::base::Prng prng(7);
  std::size_t accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes(prng.below(64));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.next());
    accepted += decode(bytes).has_value() ? 1U : 0U;
  }
  CHECK(accepted < 200);  // only the bare kinds of the right length
}
