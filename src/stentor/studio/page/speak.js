// The page's head holds plain scripts; what records is made of modules.
import("/studio/page/speak.mjs");
import("/studio/page/live.mjs");
