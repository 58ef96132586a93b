// The kernels' CPU build: the same source as the GPU's, on the emulator.
#include "kernels.cu"
