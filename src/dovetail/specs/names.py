"""The names that arguments take, for type checkers; they are checked at run time as well."""

from typing import Literal

JoinHow = Literal["inner"]
EnrichHow = Literal["inner", "left", "semi", "anti"]
JoinAlgorithm = Literal["auto", "diner", "xjoin", "shj", "diner-paper", "hmj", "rpj", "pmj", "dphj"]
JoinAllAlgorithm = Literal["auto", "miner", "miner-paper", "mjoin"]
EnrichAlgorithm = Literal["auto", "seek", "seek-uncached", "ssbj", "ameshjoin", "meshjoin", "inl"]
Shed = Literal["keep", "sample", "topw", "cluster"]
