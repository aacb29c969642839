// In place of pipeline/kernels/common/types.cuh: integers alone.
#pragma once

#define __device__
#define __global__
#define __forceinline__ inline

using uint8 = unsigned char;
using uint16 = unsigned short;
using int32 = int;
using uint32 = unsigned int;
using int64 = long long;
using uint64 = unsigned long long;
