/* The bytes of a data packet. Plain C and only <stdint.h>, so that a BPF program can include it too.
 *
 * All integers are little-endian, like the payload: gradients are copied to and from memory as they are. Offsets are
 * constants, not a packed struct, so that every access is an explicit load. The layout follows the paper's section 5.1
 * (tensor identifier, length, offset, sequence number); mlt adds cookie, timestamp, round and version.
 *
 *   0        1        2        3        4                 7
 *  +--------+--------+--------+--------+-----------------+
 *  |ver|type| flags  |path|elt| round  |    sequence     |
 *  +--------+--------+--------+--------+-----------------+
 *  |                      cookie                         |
 *  +-----------------------------------------------------+
 *  |                       tag                           |
 *  +--------------------------+--------------------------+
 *  |       generation         |       total bytes        |
 *  +--------------------------+--------------------------+
 *  |       offset             |       timestamp          |
 *  +--------------------------+--------------------------+
 *  |  payload: bytes offset .. of the tensor ...         |
 */
#ifndef MLT_WIRE_PACKET_H
#define MLT_WIRE_PACKET_H

#include <stdint.h>

/* 4: both sides of a connection prove that they know the job's secret; a PROBE names unused paths; OVERTAKES;
 * MTU_PROBE and MTU_REPLY; RETIRE
 * 5: segments join round 0 as they become ready (6.5.11); secrets are hashed before they key a proof (3.8.12) */
#define MLT_PROTOCOL_VERSION 16
/* What a datagram carries of it: hellos have compared the whole version before. */
#define MLT_DATAGRAM_VERSION (MLT_PROTOCOL_VERSION & 0x0F)

/* byte 0: MLT_DATAGRAM_VERSION in the high half, type in the low half */
#define MLT_TYPE_DATA 1
#define MLT_TYPE_ACK 2
#define MLT_TYPE_PROBE 3
#define MLT_TYPE_BITMAP 4
#define MLT_TYPE_STOP 5
#define MLT_TYPE_ABORT 6     /* over the control connection only */
#define MLT_TYPE_MTU_PROBE 7 /* padded: tests whether a datagram of this size passes */
#define MLT_TYPE_MTU_REPLY 8 /* reply to MTU_PROBE */
#define MLT_TYPE_RETIRE 9    /* over the control connection only */
#define MLT_TYPE_PARITY 10   /* a sum of segments, from which the receiver restores lost ones */

/* byte 1 of a data packet */
#define MLT_FLAG_CRITICAL 0x01     /* this segment must not be missing */
#define MLT_FLAG_HAS_CRITICAL 0x02 /* some segment of this transfer is critical */
#define MLT_FLAG_END_OF_ROUND 0x04 /* last packet of this round: also acts as a probe */
#define MLT_FLAG_REPAIR 0x08       /* sent before, in an earlier round */
/* More urgent class than an earlier packet of the transfer: it may overtake that one in a switch, so it is no evidence
 * of that packet's loss. */
#define MLT_FLAG_OVERTAKES 0x10
/* The transfer started before anything arrived from the peer, which may have dropped packets if it was not up. */
#define MLT_FLAG_UNCONFIRMED 0x20
#define MLT_DATA_FLAGS 0x3F
#define MLT_PARITY_FLAGS MLT_FLAG_END_OF_ROUND

/* byte 1 of the control packets; byte 1 of a further path in an ACK takes the ACK's flags */
#define MLT_ACK_FLAG_POSTED 0x01 /* the receive named by this ACK is posted: the sender may continue */
#define MLT_ACK_FLAG_ECHO 0x02   /* the echoed timestamp is new: it is a round-trip sample */
#define MLT_ACK_FLAGS 0x03
#define MLT_PROBE_FLAG_ACK_ONLY 0x01 /* the round has not ended: reply with an ACK, not with a bitmap */
#define MLT_PROBE_FLAG_CRITICAL 0x02 /* some segment of this transfer is critical */
/* Sent behind the data: on the same path, in the same class, with its own sequence number. When it arrives, all packets
 * sent before it on that path have arrived or are lost. Only the PROBE in the control class requests a reply. */
#define MLT_PROBE_FLAG_TRAILING 0x04
#define MLT_PROBE_FLAGS 0x07
#define MLT_BITMAP_FLAG_NOT_POSTED 0x01 /* no receive is posted yet; no bits follow */
#define MLT_BITMAP_FLAG_READY 0x02      /* the receive was posted just now; no bits follow */
#define MLT_BITMAP_FLAG_ECHO 0x04
#define MLT_BITMAP_FLAGS 0x07
#define MLT_STOP_FLAG_UNSEEN 0x01 /* the receive ended before any packet of the transfer arrived */
#define MLT_STOP_FLAG_ECHO 0x04
#define MLT_STOP_FLAGS 0x05
#define MLT_RETIRE_FLAG_LAST 0x01 /* end of the list of kept tags */
#define MLT_RETIRE_FLAGS 0x01

/* byte offsets in a data packet */
#define MLT_OFFSET_VERSION_TYPE 0
#define MLT_OFFSET_FLAGS 1
#define MLT_OFFSET_PATH_ELEMENT 2
#define MLT_OFFSET_ROUND 3
#define MLT_OFFSET_SEQUENCE 4
#define MLT_OFFSET_COOKIE 8
#define MLT_OFFSET_TAG 16
#define MLT_OFFSET_GENERATION 24
#define MLT_OFFSET_TOTAL_BYTES 28
#define MLT_OFFSET_OFFSET 32
#define MLT_OFFSET_TIMESTAMP 36
/* in a parity packet, in place of the offset */
#define MLT_OFFSET_BLOCK 32
#define MLT_OFFSET_BLOCK_SEGMENTS 34
#define MLT_OFFSET_PARITY_INDEX 35
#define MLT_DATA_HEADER_BYTES 40

/* Every datagram starts with the first 16 bytes above (version, type, flags, path, sequence, cookie). */
#define MLT_PREFIX_BYTES 16

/* The cookie on the wire is the connection's secret cookie, its upper 48 bits XORed with a check. The check covers the
 * rest of the header of a data packet (UDP's checksum covers the payload), or the rest of a whole control packet. One
 * comparison thus detects stray, forged and damaged packets. The check takes the packet as 64-bit little-endian words,
 * the last padded with zeros, without the cookie's own word:
 *     c = MLT_CHECK_SEED;  for every word w:  c = (c ^ w) * MLT_CHECK_FACTOR;  c ^= c >> 32
 */
#define MLT_CHECK_SEED 0x6D6C742D63686563ull
#define MLT_CHECK_FACTOR 0x9E3779B97F4A7C15ull

/* The low 16 bits of a cookie are the sender's rank: the receiver uses them as index of the connection, then compares
 * all 64 bits. */
#define MLT_COOKIE_RANK_MASK 0xFFFFu

/* Bits of one BITMAP datagram: 1 KiB, so that it fits any Ethernet MTU. Chunks start at multiples of it. */
#define MLT_BITMAP_CHUNK_SEGMENTS 8192u

/* Max tags in one RETIRE; a longer list takes several */
#define MLT_MAX_RETIRE_TAGS 128

#define MLT_MAX_PATHS 16

/* Segments of a block, and its parities: their sum is the number of elements of GF(2^8) */
#define MLT_MAX_BLOCK_SEGMENTS 224
#define MLT_MAX_BLOCK_PARITIES 32

#endif /* MLT_WIRE_PACKET_H */
